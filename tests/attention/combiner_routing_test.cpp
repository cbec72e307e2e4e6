#include "longspan/kernels/layer_norm.h"
#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::combiner_routing;

TEST(CombinerRouting, GivesEveryVisibleKeyAWeight) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 7, 20, 140})
      for (const char* settings : {"{clusters: 3}", "{clusters: 9, summary: mean}"})
        expect_full_attention(kRow, settings, tokens, causal);
}

TEST(CombinerRouting, OneClusterIsDense) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 17, 130})
      expect_dense_weights(kRow, "{clusters: 1}", tokens, causal);
}

// The weights, and the cluster of every token in every head.
struct Weighed {
  Tensor weights;  // [4, N, N]
  Tensor cluster;  // [4, N]
};

Weighed weighed(Attention& attention, const Tensors& x, bool causal,
                const Tensor& real = {}) {
  const int64_t tokens = x[0].size(2);
  Record choices;
  Pass pass = pass_of(causal);
  pass.choices = &choices;
  if (real.defined()) pass.mask.tokens = real.unsqueeze(0);
  const Tensor identity =
      torch::eye(tokens, torch::kDouble).expand({1, 4, tokens, tokens});
  return {attention.forward(x[0], x[1], identity, pass)[0], choices.get("clusters")[0]};
}

std::shared_ptr<Attention> of_width(int64_t tokens, int64_t clusters) {
  torch::manual_seed(9);
  const auto attention =
      make<Attention>(kRow, {.heads = 4, .head_width = 8, .value_width = tokens},
                      {{"clusters", clusters}});
  convert(*attention, torch::kCPU, torch::kDouble);
  return attention;
}

TEST(CombinerRouting, ClustersOfOneTokenAreDense) {
  constexpr int64_t kTokens = 70;
  const auto x = random_tensors(2, {1, 4, kTokens, 8}, torch::kDouble, /*seed=*/3);
  const auto attention = of_width(kTokens, kTokens);
  attention->named_buffers()["centroid_sums"].copy_(
      longspan::layer_norm(x[1][0]).to(torch::kFloat).view(torch::kInt));
  for (const bool causal : {false, true}) {
    const auto [weights, cluster] = weighed(*attention, x, causal);
    EXPECT_TRUE(cluster.eq(torch::arange(kTokens)).all().item<bool>());
    Pass pass = pass_of(causal);
    const Tensor identity =
        torch::eye(kTokens, torch::kDouble).expand({1, 4, kTokens, kTokens});
    EXPECT_TRUE(
        close(weights, made(catalogue::dense)->forward(x[0], x[1], identity, pass)[0]));
  }
}

TEST(CombinerRouting, WeighsAClusterAlikeForAllThatSeeItsSummary) {
  constexpr int64_t kTokens = 40, kClusters = 3;
  const auto x = random_tensors(2, {1, 4, kTokens, 8}, torch::kDouble);
  const auto [weights, cluster] = weighed(*of_width(kTokens, kClusters), x, false);
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t c = 0; c < kClusters; ++c) {
      const auto places = [&](const Tensor& where) { return where.nonzero().view(-1); };
      const Tensor own = places(cluster[head].eq(c)),
                   others = places(cluster[head].ne(c));
      ASSERT_GT(own.size(0), 0);
      const Tensor columns = weights[head].index_select(1, own);
      EXPECT_TRUE(has_rank_one(columns.index_select(0, others)));
      EXPECT_TRUE(own.size(0) < 3 || !has_rank_one(columns.index_select(0, own)));
    }
}

TEST(CombinerRouting, ACausalSummaryGrowsWithItsCluster) {
  constexpr int64_t kTokens = 40;
  const auto x = random_tensors(2, {1, 4, kTokens, 8}, torch::kDouble);
  const auto [weights, cluster] = weighed(*of_width(kTokens, 2), x, true);
  int64_t compared = 0;
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t i = 2; i < kTokens; ++i) {
      const auto of = [&](int64_t at) { return cluster[head][at].item<int64_t>(); };
      if (of(i) != of(i - 1)) continue;  // then both see one summary of the other
      const Tensor other = cluster[head].slice(0, 0, i).ne(of(i)).nonzero().view(-1);
      if (other.size(0) == 0) continue;
      ++compared;
      EXPECT_TRUE(
          has_rank_one(weights[head].slice(0, i - 1, i + 1).index_select(1, other)));
    }
  EXPECT_GT(compared, 10);
}

TEST(CombinerRouting, PaddingIsInNoCluster) {
  constexpr int64_t kTokens = 30;
  const auto x = random_tensors(2, {1, 4, kTokens, 8}, torch::kDouble);
  Tensor real = torch::ones(kTokens, torch::kBool);
  real.slice(0, 0, 12, 3).fill_(false);
  for (const bool causal : {false, true}) {
    const auto [weights, cluster] = weighed(*of_width(kTokens, 4), x, causal, real);
    EXPECT_TRUE(weights.index_select(2, real.logical_not().nonzero().view(-1))
                    .eq(0)
                    .all()
                    .item<bool>());
    EXPECT_TRUE(close(weights.sum(2), real.to(torch::kDouble).expand({4, -1})));
  }
}

TEST(CombinerRouting, EveryPoolingIsItsDefinition) {
  const auto x = random_tensors(3, {2, 4, 75, 8}, torch::kDouble);
  for (const char* summary : {"max", "mean", "deepsets_max", "deepsets_mean"})
    for (const bool causal : {false, true}) {
      const auto attention =
          made(kRow, "{clusters: 4, summary: " + std::string(summary) + "}");
      convert(*attention, torch::kCPU, torch::kDouble);
      Pass fast = pass_of(causal);
      fast.mask.tokens = torch::arange(75).remainder(7).ne(2).expand({2, -1});
      Pass plain = fast;
      EXPECT_TRUE(close(attention->forward(x[0], x[1], x[2], fast),
                        attention->reference(x[0], x[1], x[2], plain)))
          << summary << (causal ? ", causal" : "");
    }
}

TEST(CombinerRouting, CentroidsFollowTheKeysInTraining) {
  const auto attention = made(kRow, "{clusters: 3, decay: 0.5}");
  const auto x = random_tensors(3, {2, 4, 20, 8}, torch::kFloat);
  const auto counts = [&] {
    return attention->named_buffers()["centroid_counts"].view(torch::kFloat).sum(1);
  };
  Pass pass;
  pass.training = true;
  attention->forward(x[0], x[1], x[2], pass);
  EXPECT_TRUE(close(counts(), torch::full({4}, 0.5 * 3 + 0.5 * 40), 1e-6));
  EXPECT_GT(pass.losses.at("routing_commitment").item<double>(), 0);
  Pass quiet;
  attention->forward(x[0], x[1], x[2], quiet);
  EXPECT_TRUE(close(counts(), torch::full({4}, 0.5 * 3 + 0.5 * 40), 1e-6));
}

}  // namespace
}  // namespace longspan::testing
