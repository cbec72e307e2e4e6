#include "longspan/kernels/recompute.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::close;
using testing::random_tensors;
using testing::Tensor;
using testing::Tensors;

TEST(Recompute, GivesTheGradientsOfKeepingEverything) {
  const Tensors values = random_tensors(3, {3, 3});
  const auto f = [](const Tensors& in, const Tensor& weight) -> Tensors {
    return {torch::tanh(in[0].mm(weight)) * in[1], in[0].exp().sum()};
  };
  Tensors slopes[2];
  for (const bool again : {false, true}) {
    Tensors in;
    for (const Tensor& value : values) in.push_back(value.clone().requires_grad_());
    const Tensor weight = in[2];
    const Tensors out =
        again ? recompute([&](const Tensors& x, bool) { return f(x, weight); },
                          {in[0], in[1]}, {weight})
              : f({in[0], in[1]}, weight);
    (out[0].square().sum() + out[1] * 3).backward();
    for (const Tensor& x : in) slopes[again].push_back(x.grad());
  }
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(torch::equal(slopes[0][i], slopes[1][i])) << "input " << i;
}

TEST(Recompute, CallsAgainInTheBackwardPassOnly) {
  std::vector<bool> calls;
  const Tensor x = torch::ones(3).requires_grad_();
  const auto f = [&](const Tensors& in, bool again) -> Tensors {
    calls.push_back(again);
    EXPECT_EQ(torch::GradMode::is_enabled(), again);
    return {in[0] * 2};
  };
  const Tensor y = recompute(f, {x}, {})[0];
  EXPECT_EQ(calls, std::vector<bool>({false}));
  EXPECT_TRUE(y.requires_grad());
  y.sum().backward();
  EXPECT_EQ(calls, std::vector<bool>({false, true}));
  EXPECT_TRUE(close(x.grad(), torch::full({3}, 2.0f)));
}

TEST(Recompute, KeepsNothingWhereNoGradientIsWanted) {
  const Tensor x = torch::ones(3);
  int calls = 0;
  const auto f = [&](const Tensors& in, bool) -> Tensors {
    ++calls;
    return {in[0] * 2};
  };
  EXPECT_FALSE(recompute(f, {x}, {})[0].requires_grad());
  const torch::NoGradGuard without_gradients;
  EXPECT_FALSE(recompute(f, {x.clone().requires_grad_()}, {})[0].requires_grad());
  EXPECT_EQ(calls, 2);
}

TEST(Recompute, LeavesOutWhatIsNotUsed) {
  const Tensor x = torch::ones(2).requires_grad_(), unused = x.detach().clone(),
               idle = torch::ones(4).requires_grad_();
  const auto f = [](const Tensors& in, bool) -> Tensors {
    return {in[0] + in[1], in[0] * 5};
  };
  const Tensors out = recompute(f, {x, unused}, {idle});
  out[0].sum().backward();  // the other output has no gradient
  EXPECT_TRUE(close(x.grad(), torch::ones(2)));
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_FALSE(idle.grad().defined());
}

TEST(Recompute, MayReturnItsInput) {
  const Tensor x = torch::ones(2).requires_grad_();
  const auto f = [](const Tensors& in, bool) -> Tensors {
    return {in[0].view({2, 1})};
  };
  (recompute(f, {x}, {})[0] * 3).sum().backward();
  EXPECT_TRUE(close(x.grad(), torch::full({2}, 3.0f)));
}

}  // namespace
}  // namespace longspan
