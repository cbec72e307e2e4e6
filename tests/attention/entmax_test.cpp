#include <cmath>

#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

Tensor attended(const std::shared_ptr<Attention>& attention, const Tensors& x,
                Pass pass) {
  return attention->forward(x[0], x[1], x[2], pass);
}

TEST(EntmaxAttention, IsSparsemaxOfScaledProductsForTwo) {
  const auto x = random_tensors(3, {1, 4, 9, 8});
  const auto attention = made(catalogue::entmax, "{alpha: 2}");
  const Tensor out = attended(attention, x, pass_of(true));
  const Tensor scores = x[0].matmul(x[1].transpose(2, 3)) / std::sqrt(8.0);
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t i = 0; i < 9; ++i) {
      const Tensor row = scores[0][head][i].slice(0, 0, i + 1);
      const Tensor sorted = std::get<0>(row.sort(0, /*descending=*/true));
      const Tensor count = torch::arange(1, i + 2, torch::kDouble);
      const Tensor inside = (1 + count * sorted) > sorted.cumsum(0);
      const int64_t kept = inside.sum().item<int64_t>();
      const Tensor tau = (sorted.slice(0, 0, kept).sum() - 1) / kept;
      const Tensor expected =
          (row - tau).clamp_min(0).matmul(x[2][0][head].slice(0, 0, i + 1));
      EXPECT_TRUE(close(out[0][head][i], expected, 1e-10)) << head << ", " << i;
    }
}

TEST(EntmaxAttention, IsNearlyDenseForTheLeastAlpha) {
  const auto x = random_tensors(3, {2, 4, 40, 8});
  for (const bool causal : {false, true}) {
    const Tensor dense = attended(made(catalogue::dense), x, pass_of(causal));
    const auto error = [&](const char* settings) {
      return largest_error(
          attended(made(catalogue::entmax, settings), x, pass_of(causal)), dense);
    };
    const double least = error("{alpha: 1.01}"), more = error("{alpha: 1.02}");
    EXPECT_LT(least, 0.05);
    EXPECT_NEAR(more / least, 2, 0.2);  // of the first order in alpha - 1
  }
}

TEST(EntmaxAttention, EveryHeadHasItsOwnAlpha) {
  const auto attention = made(catalogue::entmax);
  convert(*attention, torch::kCPU, torch::kDouble);
  const Tensor pre = attention->named_parameters()["pre_alpha"];
  EXPECT_EQ(pre.sizes(), at::IntArrayRef({4}));
  {
    const torch::NoGradGuard changing;
    // 1 + sigmoid of these: 1.01 by the clamp, 1.25, 1.5, 2 but for rounding.
    pre.copy_(torch::tensor({-9.0, -std::log(3.0), 0.0, 50.0}, torch::kDouble));
  }
  const auto x = random_tensors(3, {2, 4, 33, 8});
  const Tensor out = attended(attention, x, pass_of(false));
  const char* const kSettings[] = {"{alpha: 1.01}", "{alpha: 1.25}", "{alpha: 1.5}",
                                   "{alpha: 2}"};
  for (int64_t head = 0; head < 4; ++head)
    EXPECT_TRUE(
        close(out.select(1, head),
              attended(made(catalogue::entmax, kSettings[head]), x, pass_of(false))
                  .select(1, head),
              1e-9))
        << head;
}

TEST(EntmaxAttention, LearnsAlphaBetweenItsBounds) {
  const auto attention = made(catalogue::entmax);
  convert(*attention, torch::kCPU, torch::kDouble);
  const Tensor pre = attention->named_parameters()["pre_alpha"];
  const auto x = random_tensors(4, {2, 4, 20, 8});
  const auto weighed = [&](const Tensor& at) {
    {
      const torch::NoGradGuard changing;
      pre.copy_(at);
    }
    return (attended(attention, x, pass_of(true)) * x[3]).sum();
  };
  const Tensor at = torch::tensor({-6.0, -1.0, 0.5, 2.0}, torch::kDouble);
  const Tensor slope = torch::autograd::grad({weighed(at)}, {pre})[0];
  EXPECT_EQ(slope[0].item<double>(), 0);  // clamped
  for (int64_t head = 0; head < 4; ++head) {
    constexpr double kStep = 1e-5;
    const Tensor step = torch::zeros({4}, torch::kDouble);
    step[head] = kStep;
    const double differences =
        (weighed(at + step) - weighed(at - step)).item<double>() / (2 * kStep);
    EXPECT_NEAR(slope[head].item<double>(), differences, 1e-6) << head;
  }
}

TEST(EntmaxAttention, CountsPositionsOfABiasFromTheLastKey) {
  const auto q = random_tensors(1, {2, 4, 5, 8})[0];
  const auto kv = random_tensors(2, {2, 4, 12, 8}, torch::kDouble, 1);
  Pass pass;
  pass.bias.slopes = torch::full({4}, 0.3, torch::kDouble);
  pass.context.tokens = torch::ones({2, 12}, torch::kBool);
  Pass again = pass;
  const auto attention = made(catalogue::entmax, "{alpha: 1.5}");
  EXPECT_TRUE(close(attention->forward(q, kv[0], kv[1], pass),
                    attention->reference(q, kv[0], kv[1], again)));
}

TEST(EntmaxAttention, HasNoParameterWhereAlphaIsGiven) {
  EXPECT_TRUE(made(catalogue::entmax, "{alpha: 1.5}")->parameters().empty());
}

TEST(EntmaxAttention, LowScoresHaveNoGradient) {
  auto x = random_tensors(3, {1, 4, 64, 8});
  for (Tensor& tensor : x) tensor.requires_grad_();
  const auto attention = made(catalogue::entmax, "{alpha: 2}");
  const Tensor out = attended(attention, x, pass_of(false));
  const Tensor one = torch::autograd::grad({out[0][0][5].sum()}, {x[2]})[0];
  const int64_t seen = one[0][0].select(1, 0).ne(0).sum().item<int64_t>();
  EXPECT_GE(seen, 1);
  EXPECT_LT(seen, 20);
}

TEST(EntmaxAttention, RefusesAnAlphaBeyondItsBounds) {
  EXPECT_EQ(refusal([] { made(catalogue::entmax, "{alpha: 1}"); }),
            "entmax: alpha must be from 1.01 to 2, or 0 where heads learn it, got 1");
  EXPECT_EQ(refusal([] { made(catalogue::entmax, "{alpha: 2.5}"); }),
            "entmax: alpha must be from 1.01 to 2, or 0 where heads learn it, got 2.5");
}

}  // namespace
}  // namespace longspan::testing
