#include <cmath>

#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

Tensor span_of(const Attention& attention) {
  return attention.named_parameters()["span"];
}

void set_span(const Attention& attention, const std::vector<double>& span) {
  const torch::NoGradGuard changing;
  span_of(attention).copy_(torch::tensor(span, torch::kDouble));
}

Pass causal() {
  Pass pass;
  pass.mask.causal = true;
  return pass;
}

TEST(AdaptiveSpan, IsDenseBitForBitWhenSpansHoldAll) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  Pass one = causal(), other = causal();
  EXPECT_TRUE(
      made(catalogue::adaptive_span,
           "{longest: 150, ramp: 1, initial: 1, positions: false}")
          ->forward(x[0], x[1], x[2], one)
          .equal(made(catalogue::dense, "{}")->forward(x[0], x[1], x[2], other)));
}

TEST(AdaptiveSpan, WeightsFadeAlongTheRamp) {
  const auto attention =
      made(catalogue::adaptive_span, "{longest: 8, ramp: 4, positions: false}");
  set_span(*attention, {0.5, 0, 1, -3});
  const double kFactors[4][8] = {{1, 1, 1, 1, 1, 0.75, 0.5, 0.25},
                                 {1, 0.75, 0.5, 0.25, 0, 0, 0, 0},
                                 {1, 1, 1, 1, 1, 1, 1, 1},
                                 {1, 0.75, 0.5, 0.25, 0, 0, 0, 0}};
  const auto x = random_tensors(2, {1, 4, 12, 8}, torch::kFloat);
  Pass pass = causal();
  const Tensor out = attention->forward(torch::zeros_like(x[0]), x[0], x[1], pass);
  const Sight sight = attention->sight(12, /*causal=*/true);
  for (int64_t head = 0; head < 4; ++head) {
    Tensor sum = torch::zeros(8);
    double weights = 0;
    for (int64_t distance = 0; distance < 8; ++distance) {
      sum = sum + kFactors[head][distance] * x[1][0][head][11 - distance];
      weights += kFactors[head][distance];
      EXPECT_EQ(sight.pairs[head][11][11 - distance].item<int64_t>(),
                kFactors[head][distance] > 0);
    }
    EXPECT_TRUE(close(out[0][head][11], sum / weights, 1e-5));
    EXPECT_EQ(sight.pairs[head][11][3].item<int64_t>(), 0);
  }
}

TEST(AdaptiveSpan, VectorsOfDistancesAreAddedToKeys) {
  const auto attention = made(catalogue::adaptive_span, "{longest: 8, initial: 1}");
  const auto x = random_tensors(3, {1, 4, 8, 8}, torch::kFloat);
  const Tensor vectors = attention->named_parameters()["key_positions"];
  Pass pass = causal();
  const Tensor out = attention->forward(x[0], x[1], x[2], pass).select(2, 7);
  Pass other;
  const Tensor last =
      made(catalogue::dense, "{}")
          ->forward(x[0].slice(2, 7), x[1] + vectors.flip(0), x[2], other);
  EXPECT_TRUE(close(out, last.squeeze(2), 1e-5));
}

TEST(AdaptiveSpan, GradientOfSpansIsThatOfDifferences) {
  const auto attention = made(catalogue::adaptive_span, "{longest: 32, ramp: 7}");
  convert(*attention, torch::kCPU, torch::kDouble);
  const std::vector<double> kSpans = {0.1, 0.313, 0.55, 0.9};
  const auto x = random_tensors(4, {2, 4, 70, 8});
  const auto weighed = [&](const std::vector<double>& spans) {
    set_span(*attention, spans);
    Pass pass = causal();
    return (attention->forward(x[0], x[1], x[2], pass) * x[3]).sum();
  };
  const Tensor slopes =
      torch::autograd::grad({weighed(kSpans)}, {span_of(*attention)})[0];
  for (size_t head = 0; head < 4; ++head) {
    constexpr double kStep = 1e-6;
    auto up = kSpans, down = kSpans;
    up[head] += kStep;
    down[head] -= kStep;
    const double slope = (weighed(up) - weighed(down)).item<double>() / (2 * kStep);
    EXPECT_NEAR(slopes[static_cast<int64_t>(head)].item<double>(), slope,
                1e-6 * (1 + std::abs(slope)));
  }
}

TEST(AdaptiveSpan, CanGrowFromNothing) {
  const auto attention = made(catalogue::adaptive_span, "{longest: 32, ramp: 7}");
  const auto x = random_tensors(3, {1, 4, 40, 8}, torch::kFloat);
  Pass pass = causal();
  attention->forward(x[0], x[1], x[2], pass).square().sum().backward();
  EXPECT_TRUE(span_of(*attention).grad().ne(0).all().item<bool>());
}

TEST(AdaptiveSpan, TrainingAddsALossAndKeepsSpansInRange) {
  const auto attention = made(catalogue::adaptive_span, "{longest: 100, loss: 0.01}");
  const auto x = random_tensors(3, {1, 4, 9, 8}, torch::kFloat);
  const auto run = [&](bool training, bool replay) {
    set_span(*attention, {-0.5, 0.25, 0.75, 3});
    Pass pass = causal();
    pass.training = training;
    pass.replay = replay;
    attention->forward(x[0], x[1], x[2], pass);
    return pass.losses;
  };
  EXPECT_TRUE(run(/*training=*/false, /*replay=*/false).empty());
  EXPECT_EQ(span_of(*attention).max().item<double>(), 3);
  const auto again = run(/*training=*/true, /*replay=*/true);
  EXPECT_EQ(span_of(*attention).max().item<double>(), 3);
  const auto losses = run(/*training=*/true, /*replay=*/false);
  EXPECT_TRUE(span_of(*attention).equal(torch::tensor({0.0f, 0.25f, 0.75f, 1.0f})));
  for (const auto& all : {losses, again})
    EXPECT_NEAR(all.at("adaptive_span").item<double>(), 0.01 * 100 * 0.5, 1e-6);
}

TEST(AdaptiveSpan, KeepsTheLongestSpanOfAllHeads) {
  const auto attention = made(catalogue::adaptive_span, "{longest: 40, ramp: 4}");
  set_span(*attention, {0.1, 0.24, 0, 0});  // 9.6 + 4: distances up to 13
  const auto x = random_tensors(3, {2, 4, 30, 8}, torch::kFloat);
  Record state;
  Pass pass = causal();
  pass.state = &state;
  attention->forward(x[0], x[1], x[2], pass);
  EXPECT_EQ(state.get("k").size(2), 13);
  EXPECT_EQ(state.tokens, 30);
}

TEST(AdaptiveSpan, LongSpansAreTheSameBitsOnAnyNumberOfThreads) {
  const auto attention =
      make<Attention>(catalogue::adaptive_span, {.heads = 16, .head_width = 4},
                      *Value::parse("{longest: 8192}").as<Value::Map>());
  set_span(*attention, {0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.2, 0.3,
                        0.4, 0.5, 0.6, 0.7, 0.8});
  const auto x = random_tensors(3, {1, 16, 200, 4}, torch::kFloat);
  EXPECT_TRUE(same_with_any_threads([&] {
    Pass pass = causal();
    const Tensor out = attention->forward(x[0], x[1], x[2], pass);
    return Tensors{out, torch::autograd::grad({out.sum()}, {span_of(*attention)})[0]};
  }));
}

TEST(AdaptiveSpan, RefusesSpansBeyondTheLongest) {
  EXPECT_EQ(refusal([] { made(catalogue::adaptive_span, "{initial: 1.5}"); }),
            "adaptive_span: initial must be a part of longest, 0 to 1, got 1.5");
}

}  // namespace
}  // namespace longspan::testing
