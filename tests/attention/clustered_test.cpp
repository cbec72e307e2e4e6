#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

Tensor run(const std::string& settings, const Tensor& q, const Tensor& k,
           const Tensor& v, const Tensor& tokens = {}) {
  torch::manual_seed(1);
  Pass pass;
  pass.mask.tokens = tokens;
  const auto attention = made(catalogue::clustered, settings);
  convert(*attention, torch::kCPU, q.scalar_type());
  return attention->forward(q, k, v, pass);
}

Tensor dense(const Tensor& q, const Tensor& k, const Tensor& v) {
  Pass pass;
  return made(catalogue::dense)->forward(q, k, v, pass);
}

// Queries of the kinds 0, 1, 2, 0, 1, 2 and so on. Of 48, 210 or the real ones below,
// three evenly spaced ones are of all kinds.
Tensor of_three_kinds(int64_t count) {
  const auto kinds = random_tensors(1, {1, 4, 3, 8}, torch::kDouble, 5)[0];
  return kinds.index_select(2, torch::arange(count) % 3);
}

TEST(Clustered, IsDenseWhereEveryQueryIsItsOwnCluster) {
  const auto x = random_tensors(3, {2, 4, 90, 8});
  for (const char* settings :
       {"{clusters: 90, improved: false}", "{clusters: 500, improved: false}",
        "{clusters: 500, top: 3}"})
    EXPECT_TRUE(close(run(settings, x[0], x[1], x[2]), dense(x[0], x[1], x[2])))
        << settings;
}

TEST(Clustered, IsDenseWhereAllKeysAreTopKeys) {
  const auto x = random_tensors(3, {2, 4, 90, 8});
  for (const char* settings : {"{clusters: 3, top: 90}", "{clusters: 1, top: 91}"})
    EXPECT_TRUE(close(run(settings, x[0], x[1], x[2]), dense(x[0], x[1], x[2])))
        << settings;
}

TEST(Clustered, IsDenseForQueriesLikeTheirMean) {
  const auto x = random_tensors(2, {1, 4, 30, 8});
  const auto q = of_three_kinds(210);
  for (const char* settings :
       {"{clusters: 3, improved: false}", "{clusters: 3, top: 4}"})
    EXPECT_TRUE(close(run(settings, q, x[0], x[1]), dense(q, x[0], x[1]))) << settings;
}

TEST(Clustered, WeightsOfARowSumTo1) {
  const auto x = random_tensors(2, {2, 4, 150, 8}, torch::kFloat);
  const auto ones = torch::ones({2, 4, 150, 8});
  for (const char* settings : {"{clusters: 6}", "{clusters: 6, improved: false}"})
    EXPECT_TRUE(close(run(settings, x[0] * 3, x[1], ones), ones, 1e-6)) << settings;
}

TEST(Clustered, MembersOfAClusterShareWhatItsMeanSees) {
  const auto x = random_tensors(3, {1, 4, 200, 8});
  const auto out = run("{clusters: 1, improved: false}", x[0], x[1], x[2]);
  EXPECT_TRUE(close(out, dense(x[0].mean(2, true), x[1], x[2]).expand_as(out)));
}

TEST(Clustered, MembersShareOutWhatTheirMeanGivesToItsTopKeys) {
  const auto x = random_tensors(3, {1, 4, 70, 8});
  constexpr int64_t kTop = 9;
  const auto mean = x[0].mean(2, /*keepdim=*/true);
  const double scale = 1 / std::sqrt(8.0);
  const auto given = (scale * mean.matmul(x[1].transpose(2, 3))).softmax(3);
  const auto best = std::get<1>(given.topk(kTop, 3)).expand({-1, -1, 70, -1});
  const auto own =
      (scale * x[0].matmul(x[1].transpose(2, 3))).gather(3, best).softmax(3);
  const auto all = given.expand({-1, -1, 70, -1}).contiguous();
  const auto weights = all.scatter(3, best, all.gather(3, best).sum(3, true) * own);
  EXPECT_TRUE(
      close(run("{clusters: 1, top: 9}", x[0], x[1], x[2]), weights.matmul(x[2])));
}

TEST(Clustered, QueriesGetTheirPartOfTheGradientOfTheirMean) {
  const auto x = random_tensors(3, {1, 4, 40, 8});
  const auto q = x[0].clone().requires_grad_(), mean = x[0].mean(2, true).detach();
  auto alone = mean.clone().requires_grad_();
  const auto of_members = torch::autograd::grad(
      {run("{clusters: 1, improved: false}", q, x[1], x[2]).slice(2, 7, 8).sum()},
      {q})[0];
  const auto of_mean =
      torch::autograd::grad({dense(alone, x[1], x[2]).sum()}, {alone})[0];
  EXPECT_TRUE(close(of_members, (of_mean / 40).expand_as(of_members)));
}

TEST(Clustered, PaddingIsInNoCluster) {
  const auto x = random_tensors(3, {1, 4, 60, 8});
  const auto kinds = of_three_kinds(60);
  auto real = torch::ones({1, 60}, torch::kBool);
  real.slice(1, 0, 60, 4).fill_(false);  // of all kinds
  const auto at = real[0].nonzero().view(-1);
  const auto keys = x[1].index_select(2, at), values = x[2].index_select(2, at);
  for (const char* settings :
       {"{clusters: 3, top: 4}", "{clusters: 3, improved: false}"}) {
    const auto q = torch::where(real.view({1, 1, 60, 1}), kinds, 100 * x[0]);
    const auto out = run(settings, q, x[1], x[2], real);
    EXPECT_TRUE(
        close(out.index_select(2, at), dense(kinds.index_select(2, at), keys, values)))
        << settings;
    EXPECT_EQ(out.slice(2, 0, 60, 4).count_nonzero().item<int64_t>(), 0);
  }
}

TEST(Clustered, QueriesOfOneSequenceMeetKeysOfAnother) {
  const auto q = of_three_kinds(48);
  const auto x = random_tensors(2, {1, 4, 3, 8});
  EXPECT_TRUE(close(run("{clusters: 3}", q, x[0], x[1]), dense(q, x[0], x[1])));
}

TEST(Clustered, ChoicesAreMadeOnceForARecomputation) {
  const auto x = random_tensors(4, {1, 4, 60, 8});
  const auto attention = made(catalogue::clustered, "{clusters: 4, top: 3}");
  convert(*attention, torch::kCPU, torch::kDouble);
  Record choices;
  Pass first, again, other;
  first.choices = again.choices = &choices;
  attention->forward(x[0], x[1], x[2], first);
  const auto clusters = choices.get("clusters");
  const auto out = attention->forward(x[3], x[1], x[2], again);
  EXPECT_TRUE(choices.get("clusters").is_same(clusters));
  EXPECT_FALSE(out.equal(attention->forward(x[3], x[1], x[2], other)));
}

TEST(Clustered, AreTheSameBitsWithAnyNumberOfThreads) {
  const auto x = random_tensors(3, {1, 4, 700, 8}, torch::kFloat);
  EXPECT_TRUE(same_with_any_threads([&] {
    const auto q = x[0].clone().requires_grad_(), v = x[2].clone().requires_grad_();
    const auto out = run("{clusters: 20}", q, x[1], v);
    auto all = torch::autograd::grad({out}, {q, v}, {x[1]});
    all.push_back(out.detach());
    return all;
  }));
}

TEST(Clustered, RefusesWhatItCannotDo) {
  EXPECT_EQ(refusal([] { made(catalogue::clustered, "{bits: 64}"); }),
            "clustered: bits must be 1 to 63, got 64");
  EXPECT_EQ(refusal([] { made(catalogue::clustered, "{clusters: 100000}"); }),
            "clustered: clusters must be 1 to 65536, got 100000");
}

}  // namespace
}  // namespace longspan::testing
