#include <cmath>

#include "longspan/kernels/layer_norm.h"
#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::routing;

// Of four heads of 8, in float.
Tensor numbers_of(const torch::nn::Module& module, const std::string& name) {
  return module.named_buffers()[name].view(torch::kFloat).clone();
}

std::shared_ptr<Attention> seeded(const std::string& settings) {
  torch::manual_seed(7);
  return made(kRow, settings);
}

TEST(Routing, OneClusterOfAllTokensIsDense) {
  for (const int64_t tokens : {1, 17, 130}) {
    expect_dense_weights(kRow, "{clusters: 1, normalised: false}", tokens, false);
    expect_dense_weights(kRow, "{clusters: 1, normalised: false, last: 500}", tokens,
                         true);
  }
}

TEST(Routing, ClustersThatTakeAllTokensAreDense) {
  expect_dense_weights(kRow, "{clusters: 3, window: 20, normalised: false}", 20, false);
}

TEST(Routing, ScoresAreOfNormalisedQueriesAndKeysTimesTheScale) {
  const auto x = random_tensors(3, {2, 4, 20, 8}, torch::kFloat);
  const Tensor q = longspan::layer_norm(x[0]), k = longspan::layer_norm(x[1]);
  for (const bool causal : {false, true}) {
    Pass one = pass_of(causal), other = pass_of(causal);
    EXPECT_TRUE(close(
        seeded("{clusters: 1, scale: 1}")->forward(x[0], x[1], x[2], one),
        made(catalogue::dense)->forward(q * std::sqrt(8.0), k, x[2], other), 1e-5));
  }
}

TEST(Routing, EveryClusterTakesItsShareOfRealTokens) {
  constexpr int64_t kClusters = 5;
  const auto x = random_tensors(3, {3, 4, 23, 8}, torch::kFloat);
  Tensor real = torch::ones({3, 23}, torch::kBool);
  real[1].slice(0, 0, 20, 2).fill_(false);
  real[2].fill_(false);
  Record choices;
  Pass pass;
  pass.mask.tokens = real;
  pass.choices = &choices;
  seeded("{clusters: 5}")->forward(x[0], x[1], x[2], pass);
  for (const char* name : {"queries", "keys"}) {
    const Tensor taken = choices.get(name).view({3, 4, kClusters, 5});
    const int64_t shares[] = {5, 3, 0};  // of 23, 13 and no tokens
    for (int64_t b = 0; b < 3; ++b) {
      EXPECT_TRUE(taken[b].ge(0).sum(2).eq(shares[b]).all().item<bool>()) << name;
      for (int64_t head = 0; head < 4; ++head)
        for (int64_t c = 0; c < kClusters; ++c) {
          const Tensor some = taken[b][head][c].slice(0, 0, shares[b]);
          EXPECT_EQ(std::get<0>(torch::_unique2(some)).size(0), shares[b]);
          EXPECT_TRUE(real[b].index_select(0, some).all().item<bool>());
        }
    }
  }
}

TEST(Routing, ATokenHasTheMeanOverTheClustersThatTookIt) {
  const Tensor weights = attention_matrix(kRow, "{clusters: 4, window: 9}", 30, false);
  const Tensor sums = weights.sum(2);
  EXPECT_TRUE((sums.eq(0) | (sums - 1).abs().lt(1e-12)).all().item<bool>());
  EXPECT_GT(sums.eq(0).sum().item<int64_t>(), 0);  // no cluster took these
  // More keys than one cluster takes: of several.
  EXPECT_GT((weights > 0).sum(2).max().item<int64_t>(), 9);
}

TEST(Routing, EverySettingIsItsDefinition) {
  const auto x = random_tensors(3, {2, 4, 75, 8}, torch::kDouble);
  for (const char* settings :
       {"{clusters: 4, window: 9, last: 9}", "{clusters: 4, window: 80, last: 80}",
        "{clusters: 90, normalised: false, last: 1}", "{clusters: 3, scale: 2}"})
    for (const bool causal : {false, true}) {
      const auto attention = seeded(settings);
      convert(*attention, torch::kCPU, torch::kDouble);
      Pass fast = pass_of(causal);
      fast.mask.tokens = torch::arange(75).remainder(7).ne(2).expand({2, -1});
      Pass plain = fast;
      EXPECT_TRUE(close(attention->forward(x[0], x[1], x[2], fast),
                        attention->reference(x[0], x[1], x[2], plain)))
          << settings << (causal ? ", causal" : "");
    }
}

TEST(Routing, OfEqualTokensTheFirstAreTaken) {
  const Tensor zeros = torch::zeros({1, 4, 40, 8});
  for (const int64_t padding : {0, 30}) {
    Record choices;
    Pass pass;
    pass.choices = &choices;
    pass.mask.tokens = torch::arange(40).unsqueeze(0) >= padding;
    seeded("{clusters: 2, window: 7}")->forward(zeros, zeros, zeros, pass);
    const Tensor taken = std::get<0>(choices.get("keys").view({8, 7}).sort(1));
    EXPECT_TRUE(taken.eq(torch::arange(padding, padding + 7)).all().item<bool>());
  }
}

TEST(Routing, CausalTokensSeeTheLastOfTheirCluster) {
  constexpr int64_t kTokens = 90, kLast = 4;
  for (const int64_t clusters : {1, 3}) {
    const auto x = random_tensors(2, {1, 4, kTokens, 8}, torch::kFloat);
    const auto attention =
        make<Attention>(kRow, {.heads = 4, .head_width = 8, .value_width = kTokens},
                        {{"clusters", clusters}, {"last", kLast}});
    Record choices;
    Pass pass = pass_of(true);
    pass.choices = &choices;
    const Tensor weights = attention->forward(
        x[0], x[1], torch::eye(kTokens).expand({1, 4, -1, -1}), pass)[0];
    EXPECT_TRUE(close(weights.sum(2), torch::ones({4, kTokens}), 1e-5));
    const Tensor cluster = choices.get("clusters")[0].contiguous();
    for (int64_t head = 0; head < 4; ++head)
      for (int64_t i = 0; i < kTokens; ++i) {
        int64_t number = 0;
        for (int64_t j = kTokens - 1; j >= 0; --j) {
          const bool own = j <= i && cluster[head][j].item<int64_t>() ==
                                         cluster[head][i].item<int64_t>();
          const bool seen = own && number++ < kLast;
          ASSERT_EQ(weights[head][i][j].item<float>() > 0, seen) << i << " " << j;
        }
      }
  }
}

TEST(Routing, DecodingKeepsFewTokensOfEveryCluster) {
  for (const int64_t last : {1, 5}) {
    const auto attention = seeded("{clusters: 3, last: " + std::to_string(last) + "}");
    const auto x = random_tensors(3, {2, 4, 160, 8}, torch::kFloat);
    Pass whole = pass_of(true);
    const Tensor expected = attention->forward(x[0], x[1], x[2], whole);
    Record state;
    for (int64_t from = 0; from < 160; from += 20) {
      const auto some = [&](const Tensor& y) { return y.slice(2, from, from + 20); };
      Pass pass = pass_of(true);
      pass.state = &state;
      EXPECT_TRUE(close(attention->forward(some(x[0]), some(x[1]), some(x[2]), pass),
                        some(expected), 1e-5));
    }
    EXPECT_EQ(state.tokens, 160);
    EXPECT_EQ(state.get("k").size(2), 3 * (last - 1));
  }
}

// A pass of training, and what it adds to the loss.
double trained(Attention& attention, const Tensors& x, const Tensor& real = {},
               bool replay = false, Record* choices = nullptr) {
  Pass pass;
  pass.training = true;
  pass.replay = replay;
  pass.choices = choices;
  pass.mask.tokens = real;
  attention.forward(x[0], x[1], x[2], pass);
  return pass.losses.at("routing_commitment").item<double>();
}

TEST(Routing, CentroidsAreMovingMeans) {
  constexpr double kDecay = 0.75;
  constexpr int64_t kClusters = 3;
  const auto attention = seeded("{clusters: 3, decay: 0.75, commitment: 0.5}");
  const Tensor counts = numbers_of(*attention, "centroid_counts"),
               sums = numbers_of(*attention, "centroid_sums");
  EXPECT_TRUE(counts.eq(1).all().item<bool>());
  const auto x = random_tensors(3, {2, 4, 20, 8}, torch::kFloat);
  Tensor real = torch::ones({2, 20}, torch::kBool);
  real[1].slice(0, 3, 9).fill_(false);
  const double loss = trained(*attention, x, real);

  double distance = 0;
  for (int64_t head = 0; head < 4; ++head) {
    Tensor number = torch::zeros({kClusters}), sum = torch::zeros({kClusters, 8});
    for (int which = 0; which < 2; ++which)
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < 20; ++i) {
          if (!real[b][i].item<bool>()) continue;
          const Tensor row = longspan::layer_norm(x[which])[b][head][i];
          const auto c = sums[head].mv(row).argmax().item<int64_t>();
          number[c] += 1;
          sum[c] += row;
          distance += (row - sums[head][c]).square().sum().item<double>();
        }
    EXPECT_TRUE(close(numbers_of(*attention, "centroid_counts")[head],
                      kDecay * counts[head] + (1 - kDecay) * number, 1e-6));
    EXPECT_TRUE(close(numbers_of(*attention, "centroid_sums")[head],
                      kDecay * sums[head] + (1 - kDecay) * sum, 1e-6));
  }
  EXPECT_NEAR(loss, 0.5 * distance / (2 * 4 * 34), 1e-4);
}

TEST(Routing, TheNextPassRoutesBySumsOverCounts) {
  const auto attention = seeded("{clusters: 3, decay: 0.5}");
  const auto x = random_tensors(3, {2, 4, 20, 8}, torch::kFloat);
  trained(*attention, x);
  Record choices;
  Pass pass;
  pass.choices = &choices;
  attention->forward(x[0], x[1], x[2], pass);
  const Tensor counts = numbers_of(*attention, "centroid_counts"),
               all = counts.sum(1, /*keepdim=*/true);
  const Tensor smooth = (counts + 1e-5) / (all + 3e-5) * all;
  EXPECT_TRUE(close(choices.get("centroids"),
                    numbers_of(*attention, "centroid_sums") / smooth.unsqueeze(2),
                    1e-6));
}

TEST(Routing, CentroidsRestInEvaluationAndReplay) {
  const auto attention = seeded("{clusters: 3}");
  const auto x = random_tensors(3, {2, 4, 20, 8}, torch::kFloat);
  const Tensor before = numbers_of(*attention, "centroid_sums");
  for (const bool causal : {false, true}) {
    Pass pass = pass_of(causal);
    attention->forward(x[0], x[1], x[2], pass);
    EXPECT_TRUE(pass.losses.empty());
  }
  trained(*attention, x, {}, /*replay=*/true);
  EXPECT_TRUE(numbers_of(*attention, "centroid_sums").equal(before));
}

TEST(Routing, CentroidsMoveInBfloat16) {
  const auto attention = seeded("{clusters: 3}");
  const Tensor before = numbers_of(*attention, "centroid_counts");
  convert(*attention, torch::kCPU, torch::kBFloat16);
  EXPECT_TRUE(numbers_of(*attention, "centroid_counts").equal(before));
  trained(*attention, random_tensors(3, {2, 4, 20, 8}, torch::kBFloat16));
  const Tensor after = numbers_of(*attention, "centroid_counts");
  EXPECT_TRUE(close(after.sum(1), 0.999 * before.sum(1) + 0.001 * 80, 1e-6));
}

TEST(Routing, AReplayRepeatsChoicesThoughCentroidsMoved) {
  const auto x = random_tensors(3, {2, 4, 50, 8}, torch::kFloat);
  for (const bool causal : {false, true}) {
    const auto attention = seeded("{clusters: 4, decay: 0, last: 5}");
    const auto run = [&](bool replay, Record* choices) {
      Pass pass = pass_of(causal);
      pass.training = true;
      pass.replay = replay;
      pass.choices = choices;
      const Tensor out = attention->forward(x[0], x[1], x[2], pass);
      return Tensors{out, pass.losses.at("routing_commitment")};
    };
    Record choices;
    const Tensors first = run(false, &choices), again = run(true, &choices);
    EXPECT_TRUE(first[0].equal(again[0]) && first[1].equal(again[1]));
    EXPECT_FALSE(first[0].equal(run(true, nullptr)[0]));
  }
}

TEST(Routing, SaysWhatItCannotDo) {
  EXPECT_EQ(refusal([] { made(kRow, "{decay: 1}"); }),
            "routing: decay must be 0 or more and less than 1, got 1");
  const auto q = random_tensors(1, {1, 4, 9, 8}, torch::kFloat)[0];
  const Tensor k = q.slice(2, 0, 5);
  EXPECT_EQ(refusal([&] {
              Pass pass = pass_of(true);
              made(kRow)->forward(q, k, k, pass);
            }),
            "routing: queries must be the last of the keys, got 9 and 5 keys");
}

}  // namespace
}  // namespace longspan::testing
