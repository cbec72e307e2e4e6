#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

TEST(Sliding, IsDenseBitForBitWhenTheWindowHoldsAll) {
  expect_dense_bits(catalogue::sliding, "{window: 150}");
}

TEST(Sliding, DilatedSeesEveryOtherToken) {
  const auto x = random_tensors(3, {1, 4, 40, 8});
  const auto even = torch::arange(0, 40, 2);
  const auto of_even = [&](const Tensor& y) { return y.index_select(2, even); };
  Pass one, other;
  const auto dilated = made(catalogue::sliding, "{window: 3, dilation: [2]}")
                           ->forward(x[0], x[1], x[2], one);
  const auto apart = made(catalogue::sliding, "{window: 3}")
                         ->forward(of_even(x[0]), of_even(x[1]), of_even(x[2]), other);
  EXPECT_TRUE(close(of_even(dilated), apart));
}

TEST(Sliding, DecodesWhenExamplesLeaveAndChangePlaces) {
  const auto x = random_tensors(3, {3, 4, 20, 8});
  const auto part = made(catalogue::sliding, "{window: 4, dilation: [1, 2, 1, 3]}");
  Pass whole;
  whole.mask.causal = true;
  const auto parallel = part->forward(x[0], x[1], x[2], whole);
  Record state;
  const auto step = [&](int64_t from, int64_t to, const Tensor& examples) {
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    const auto of = [&](const Tensor& y) {
      return y.index_select(0, examples).slice(2, from, to);
    };
    const auto out = part->forward(of(x[0]), of(x[1]), of(x[2]), pass);
    EXPECT_TRUE(close(out, of(parallel)));
  };
  step(0, 13, torch::arange(3));
  state.select(torch::tensor({2, 0}));
  step(13, 15, torch::tensor({2, 0}));
  const auto nobody = torch::zeros(0, torch::kLong);
  state.select(nobody);
  step(15, 16, nobody);
  EXPECT_EQ(state.tokens, 16);
}

TEST(Sliding, RefusesDilationsThatDoNotFit) {
  EXPECT_EQ(
      refusal([] { made(catalogue::sliding, "{dilation: [1, 2]}"); }),
      "sliding: dilation must be one number or one for each of the 4 heads, got 2");
  EXPECT_EQ(refusal([] { made(catalogue::sliding, "{dilation: [0]}"); }),
            "sliding: dilation must be a list of whole numbers of 1 or more, got 0");
}

}  // namespace
}  // namespace longspan::testing
