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

// Seven steps, of which one tells a number beside and all share a parameter.
struct Chain {
  Tensors weights = random_tensors(7, {4, 4}, torch::kDouble, 2);
  Tensor shared = torch::ones(4, torch::kDouble);
  int calls = 0;

  Chain() {
    for (Tensor& weight : weights) weight.requires_grad_();
    shared.requires_grad_();
  }

  std::vector<ReversibleStep> steps() {
    std::vector<ReversibleStep> all;
    for (size_t i = 0; i < weights.size(); ++i)
      all.push_back({.f = [this, i](const Tensors& in, bool) -> Tensors {
                       ++calls;
                       Tensors made = {torch::tanh(in[0].mm(weights[i])) * shared};
                       if (i == 3) made.push_back(made[0].square().sum());
                       return made;
                     },
                     .parameters = {weights[i], shared}});
    return all;
  }

  // The same, with everything kept.
  Tensors kept(Tensor a, Tensor b) {
    Tensors told;
    for (const ReversibleStep& step : steps()) {
      const Tensors made = step.f({b}, false);
      const Tensor next = a + made[0];
      a = b;
      b = next;
      told.insert(told.end(), made.begin() + 1, made.end());
    }
    told.insert(told.begin(), {a, b});
    return told;
  }
};

TEST(Reversible, GivesTheGradientsOfKeepingEverything) {
  const Tensors values = random_tensors(2, {5, 4});
  // Of the last two, and of what was told beside: whether each has a gradient.
  for (const int used : {7, 1, 2, 4}) {
    Tensors slopes[2];
    for (const bool undone : {false, true}) {
      Chain chain;
      const Tensor a = values[0].clone().requires_grad_(),
                   b = values[1].clone().requires_grad_();
      const Tensors outs = undone ? reversible(chain.steps(), a, b) : chain.kept(a, b);
      ASSERT_EQ(outs.size(), 3u);
      EXPECT_EQ(chain.calls, 7);
      Tensor total = torch::zeros({}, torch::kDouble);
      for (int out = 0; out < 3; ++out)
        if (used >> out & 1) total = total + outs[static_cast<size_t>(out)].exp().sum();
      total.backward();
      EXPECT_EQ(chain.calls, undone ? 14 : 7);
      slopes[undone] = {a.grad(), b.grad(), chain.shared.grad()};
      for (const Tensor& weight : chain.weights)
        slopes[undone].push_back(weight.grad());
    }
    for (size_t i = 0; i < slopes[0].size(); ++i) {
      ASSERT_EQ(slopes[0][i].defined(), slopes[1][i].defined()) << i << " of " << used;
      if (slopes[0][i].defined()) {
        EXPECT_TRUE(close(slopes[1][i], slopes[0][i], 1e-12)) << i << " of " << used;
      }
    }
  }
}

TEST(Reversible, MayHaveOneStepAndOneInput) {
  const Tensor x = torch::full({3}, 2.0).requires_grad_();
  const auto doubled = [](const Tensors& in, bool) -> Tensors { return {in[0] * 2}; };
  const Tensors outs = reversible({{.f = doubled}}, x, x);
  EXPECT_TRUE(close(outs[0], torch::full({3}, 2.0)));
  EXPECT_TRUE(close(outs[1], torch::full({3}, 6.0)));
  (outs[0] + outs[1] * 10).sum().backward();
  EXPECT_TRUE(close(x.grad(), torch::full({3}, 31.0)));
  const torch::NoGradGuard without_gradients;
  EXPECT_FALSE(reversible({{.f = doubled}}, x, x)[1].requires_grad());
}

}  // namespace
}  // namespace longspan
