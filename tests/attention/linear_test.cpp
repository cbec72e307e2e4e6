#include "longspan/contract/contract.h"
#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

TEST(LinearTransformer, IsTheRecurrenceOfThePaper) {
  constexpr double kEpsilon = 0.5;
  const auto linear = made(catalogue::linear, "{epsilon: 0.5}", /*heads=*/1);
  const auto x = random_tensors(3, {1, 1, 9, 8});
  Pass pass = pass_of(/*causal=*/true);
  const Tensor out = linear->forward(x[0], x[1], x[2], pass);
  const auto row = [](const Tensor& y, int64_t token) { return y[0][0][token]; };
  const auto feature = [&](const Tensor& y, int64_t token) {
    return torch::elu(row(y, token)) + 1;
  };
  Tensor sums = torch::zeros({8, 8}, torch::kDouble), norm = torch::zeros_like(sums[0]);
  for (int64_t token = 0; token < 9; ++token) {
    const Tensor k = feature(x[1], token), q = feature(x[0], token);
    sums = sums + torch::outer(k, row(x[2], token));
    norm = norm + k;
    const Tensor expected = q.matmul(sums) / (q.dot(norm) + kEpsilon);
    EXPECT_TRUE(close(row(out, token), expected)) << token;
  }
}

TEST(LinearTransformer, IsTheMeanOfTheValuesWhereKeysAreAlike) {
  const auto x = random_tensors(2, {2, 4, 50, 8});
  Pass pass;
  const Tensor out = made(catalogue::linear, "{epsilon: 0}")
                         ->forward(x[0], torch::ones_like(x[0]), x[1], pass);
  EXPECT_TRUE(close(out, x[1].mean(2, /*keepdim=*/true).expand_as(out)));
}

TEST(LinearTransformer, KeepsFeaturesThatAreSmall) {
  // elu(-20) + 1 is 0 in float, its feature is exp(-20).
  const Tensor small = torch::full({1, 4, 6, 8}, -20.0f);
  const auto v = random_tensors(1, {1, 4, 6, 8}, torch::kFloat)[0];
  Pass pass, other;
  const Tensor mean =
      made(catalogue::linear, "{epsilon: 0}")->forward(small, small, v, pass);
  EXPECT_TRUE(close(mean, v.mean(2, /*keepdim=*/true).expand_as(v), 1e-5));
  // The paper's epsilon is large beside them.
  const Tensor faded = made(catalogue::linear)->forward(small, small, v, other);
  EXPECT_LT(faded.abs().max().item<double>(), 1e-6);
}

TEST(LinearTransformer, DoesNotKnowTheOrderOfTokensUnlessCausal) {
  const auto x = random_tensors(3, {2, 4, 300, 8});
  const auto linear = made(catalogue::linear);
  const Tensor order = torch::randperm(300);
  const auto put = [&](const Tensor& y) { return y.index_select(2, order); };
  Pass one, other;
  EXPECT_TRUE(close(linear->forward(put(x[0]), put(x[1]), put(x[2]), one),
                    put(linear->forward(x[0], x[1], x[2], other))));
}

TEST(LinearTransformer, TheMapExpIsSoftmaxWhereAKeyIsOneNumberHoweverLarge) {
  const auto linear = made(catalogue::linear, "{map: exp, epsilon: 0}");
  const auto x = random_tensors(2, {2, 4, 40, 8}, torch::kFloat);
  const Tensor number = 300 * x[0].select(3, 0).unsqueeze(3);
  Pass pass;
  const Tensor out = linear->forward(x[0], number.expand_as(x[0]), x[1], pass);
  const Tensor expected = number.transpose(2, 3).softmax(3).matmul(x[1]);
  EXPECT_TRUE(close(out, expected.expand_as(out), 1e-5));
}

TEST(LinearTransformer, EveryMapKeepsTheContract) {
  for (const char* const settings :
       {"{map: relu}", "{map: squared_relu}", "{map: exp}"}) {
    Mechanism row = catalogue::linear;
    row.test_settings = settings;
    for (const int clause : {1, 2, 5}) {
      const Verdict verdict = contract()[clause].check(row, torch::kCPU);
      EXPECT_EQ(verdict.state, Verdict::State::holds)
          << settings << ": " << verdict.detail;
    }
  }
}

TEST(LinearTransformer, LongSequencesAreTheSameBitsOnAnyNumberOfThreads) {
  const auto linear = made(catalogue::linear, "{}", /*heads=*/1);
  const auto x = random_tensors(3, {1, 1, 20011, 8}, torch::kFloat);
  EXPECT_TRUE(same_with_any_threads([&] {
    const Tensor q = x[0].clone().requires_grad_();
    Pass pass = pass_of(/*causal=*/true);
    const Tensor out = linear->forward(q, x[1], x[2], pass);
    return Tensors{out.detach(), torch::autograd::grad({out.sum()}, {q})[0]};
  }));
}

TEST(LinearTransformer, LongSequencesOfLowPrecisionStayNearFloat) {
  const auto linear = made(catalogue::linear, "{}", /*heads=*/1);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    Tensors x = random_tensors(3, {1, 1, 65536, 8}, torch::kFloat);
    for (Tensor& each : x) each = (each + 1).to(type);
    const Record state = expect_near_float(*linear, x);
    // 65536 keys whose features sum to more than 256, where sums of bfloat16 would end.
    EXPECT_GT(state.get("sums").select(3, 8).min().item<double>(), 65536);
  }
}

TEST(LinearTransformer, RefusesFewerQueriesThanKeysInOrder) {
  const auto x = random_tensors(2, {1, 4, 9, 8});
  Pass pass = pass_of(/*causal=*/true);
  EXPECT_EQ(refusal([&] {
              made(catalogue::linear)->forward(x[0].slice(2, 3), x[1], x[1], pass);
            }),
            "linear attention: causal needs as many queries as keys, got 6 and 9");
}

}  // namespace
}  // namespace longspan::testing
