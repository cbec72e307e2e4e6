#include <cmath>

#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

double error(const Tensor& got, const Tensor& expected) {
  return (got - expected).square().mean().sqrt().item<double>();
}

TEST(Scatterbrain, IsDenseBitForBitWhenTheWindowHoldsAll) {
  expect_dense_bits(catalogue::scatterbrain, "{window: 149}");
  expect_dense_bits(catalogue::scatterbrain, "{window: 9223372036854775807}");
}

TEST(Scatterbrain, WeightsAreExactInTheWindowAndByFeaturesBeyond) {
  constexpr int64_t kTokens = 8;
  const auto x = random_tensors(3, {1, 4, kTokens, 8});
  for (const int64_t window : {0, 2, 6}) {
    const auto attention =
        made(catalogue::scatterbrain,
             "{features: 3, window: " + std::to_string(window) + "}");
    convert(*attention, torch::kCPU, torch::kDouble);
    const Tensor directions = attention->named_buffers()["directions"];
    for (const bool causal : {false, true}) {
      Pass pass = pass_of(causal);
      const Tensor out = attention->forward(x[0], x[1], x[2], pass);
      for (int64_t head = 0; head < 4; ++head) {
        for (int64_t i = 0; i < kTokens; ++i) {
          Tensor sum = torch::zeros(8, torch::kDouble);
          double weights = 0;
          for (int64_t j = 0; j < (causal ? i + 1 : kTokens); ++j) {
            const Tensor q = x[0][0][head][i], k = x[1][0][head][j];
            double weight = std::exp(q.dot(k).item<double>() / std::sqrt(8));
            if (std::abs(i - j) > window)
              weight = (directions[head].matmul(q + k) / std::pow(8, 0.25) -
                        (q.dot(q) + k.dot(k)) / (2 * std::sqrt(8)))
                           .exp()
                           .mean()
                           .item<double>();
            sum += weight * x[2][0][head][j];
            weights += weight;
          }
          EXPECT_TRUE(close(out[0][head][i], sum / weights))
              << window << " " << causal << " " << head << " " << i;
        }
      }
    }
  }
}

TEST(Scatterbrain, IsNearerToDenseThanFeaturesAlone) {
  constexpr int kSeeds = 20;
  // Tokens that are like their neighbours and like no others.
  const Tensor some =
      random_tensors(1, {1, 4, 20, 8}, torch::kFloat)[0].repeat_interleave(5, 2);
  const Tensor q = 2.5 * some / some.norm(2, {3}, /*keepdim=*/true);
  const auto v = random_tensors(1, {1, 4, 100, 8}, torch::kFloat, 1)[0];
  for (const bool causal : {false, true}) {
    const auto run = [&](const Mechanism& row, const std::string& settings) {
      Pass pass = pass_of(causal);
      return made(row, settings)->forward(q, q, v, pass);
    };
    const Tensor exact = run(catalogue::dense, "{}");
    double features = 0, both = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      torch::manual_seed(seed);
      features += error(run(catalogue::performer, "{}"), exact);
      both += error(run(catalogue::scatterbrain, "{window: 4}"), exact);
    }
    EXPECT_LT(both, 0.85 * features);
  }
}

TEST(Scatterbrain, NothingIsLostWhereTheWindowOutweighsTheRest) {
  // Products of a token with itself are so large that the features' share of them,
  // subtracted from sums over all keys, would leave rounding alone.
  const auto x = random_tensors(2, {1, 4, 60, 8});
  const auto attention = made(catalogue::scatterbrain, "{window: 1, features: 16}");
  const auto run = [&](torch::Dtype type) {
    convert(*attention, torch::kCPU, type);
    Pass pass;
    const Tensor q = (6 * x[0]).to(type);
    return attention->forward(q, q, x[1].to(type), pass).to(torch::kDouble);
  };
  const Tensor low = run(torch::kFloat), exact = run(torch::kDouble);
  EXPECT_TRUE(close(low, exact, 1e-4));
}

TEST(Scatterbrain, HolesInPaddingLeaveTheWindowInItsPlace) {
  const auto x = random_tensors(3, {1, 4, 30, 8}, torch::kFloat);
  const auto attention = made(catalogue::scatterbrain, "{window: 3, features: 1}");
  Pass pass;
  pass.mask.tokens = torch::ones({1, 30}, torch::kBool);
  pass.mask.tokens.slice(1, 11, 14).fill_(false);
  const Tensor out = attention->forward(x[0], x[1], x[2], pass);
  // Token 10 sees no key of its window after itself; the next real one is beyond it.
  // With one feature all keys beyond have the weights of that feature's softmax.
  const Tensor directions = attention->named_buffers()["directions"];
  const Tensor q = x[0][0].select(1, 10), k = x[1][0];  // [H, d], [H, N, d]
  const Tensor exact = (k * q.unsqueeze(1)).sum(2) / std::sqrt(8);
  const Tensor by_feature =
      ((k + q.unsqueeze(1)) * directions).sum(2) / std::pow(8, 0.25) -
      (k.square().sum(2) + q.square().sum(1, /*keepdim=*/true)) / (2 * std::sqrt(8));
  const Tensor near = (torch::arange(30) - 10).abs() <= 3;
  const Tensor weights = torch::where(near, exact, by_feature)
                             .masked_fill(pass.mask.tokens.logical_not(), -INFINITY)
                             .softmax(1);
  EXPECT_TRUE(close(out[0].select(1, 10),
                    weights.unsqueeze(1).matmul(x[2][0]).squeeze(1), 1e-5));
}

TEST(Scatterbrain, DecodingKeepsTheWindowAndSums) {
  const auto x = random_tensors(3, {1, 4, 40, 8}, torch::kFloat);
  const auto attention = made(catalogue::scatterbrain, "{window: 6, features: 16}");
  Record state;
  for (int64_t token = 0; token < 40; ++token) {
    Pass pass = pass_of(/*causal=*/true);
    pass.state = &state;
    const auto at = [&](const Tensor& y) { return y.slice(2, token, token + 1); };
    attention->forward(at(x[0]), at(x[1]), at(x[2]), pass);
    EXPECT_EQ(state.get("k").size(2), std::min<int64_t>(token + 1, 7));
    EXPECT_EQ(state.get("sums").defined(), token > 6);
  }
  EXPECT_EQ(state.get("sums").sizes(), (std::vector<int64_t>{1, 4, 16, 9}));
}

TEST(Scatterbrain, LongSequencesOfLowPrecisionStayNearFloat) {
  const auto attention =
      made(catalogue::scatterbrain, "{window: 6, features: 16}", /*heads=*/1);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    Tensors x = random_tensors(3, {1, 1, 65536, 8}, torch::kFloat);
    for (Tensor& each : x) each = (2 * each).to(type);
    const Record state = expect_near_float(*attention, x);
    EXPECT_EQ(state.get("max").scalar_type(), torch::kFloat);
  }
}

TEST(Scatterbrain, PictureShowsTheWindow) {
  const auto attention = made(catalogue::scatterbrain, "{window: 1}");
  EXPECT_TRUE(
      attention->sight(4, /*causal=*/true)
          .pairs[0]
          .equal(torch::tensor({{1, 0, 0, 0}, {1, 1, 0, 0}, {2, 1, 1, 0}, {2, 2, 1, 1}},
                               torch::kByte)));
  EXPECT_EQ(attention->sight(4, /*causal=*/false).pairs[0][0][3].item<int64_t>(), 2);
}

}  // namespace
}  // namespace longspan::testing
