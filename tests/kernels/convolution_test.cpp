#include "longspan/kernels/convolution.h"

#include "tests/support/any_threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Convolution, EqualsItsReferenceWithGradients) {
  for (const int64_t kernel : {1, 3, 33, 65}) {
    for (const int64_t tokens : {0, 1, 2, 31, 64, 65, 200}) {
      for (const int64_t heads : {2, 4}) {
        torch::manual_seed(1);
        const Tensor v =
            torch::randn({2, 2, tokens, 5}, torch::kDouble).requires_grad_();
        const Tensor weight =
            torch::randn({heads, kernel}, torch::kDouble).requires_grad_();
        const Tensor slope = torch::randn({2, heads, tokens, 5}, torch::kDouble);
        const auto results = [&](const Tensor& out) {
          Tensors all = torch::autograd::grad({out}, {v, weight}, {slope});
          all.push_back(out);
          return all;
        };
        const Tensors got = results(longspan::convolution(v, weight)),
                      expected = results(convolution_reference(v, weight));
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(close(got[i], expected[i]))
              << "result " << i << ", T = " << kernel << ", N = " << tokens;
      }
    }
  }
}

TEST(Convolution, GivesTheSameBitsOnAnyNumberOfThreads) {
  const auto x = random_tensors(2, {2, 4, 3000, 8}, torch::kFloat);
  EXPECT_TRUE(same_with_any_threads([&] {
    const Tensor v = x[0].detach().requires_grad_();
    const Tensor weight = x[1][0].slice(1, 0, 33).select(2, 0).clone().requires_grad_();
    const Tensor out = longspan::convolution(v, weight);
    Tensors all = torch::autograd::grad({out}, {v, weight}, {x[1]});
    all.push_back(out);
    return all;
  }));
}

TEST(Convolution, PutsTheMiddleOfTheWeightsOnTheTokenItself) {
  const Tensor v = torch::arange(5, torch::kFloat).view({1, 1, 5, 1});
  const Tensor before = torch::tensor({{1.f, 0.f, 0.f}});
  EXPECT_TRUE(longspan::convolution(v, before).flatten().equal(
      torch::tensor({0.f, 0.f, 1.f, 2.f, 3.f})));
}

TEST(Convolution, RefusesWeightsWithoutAMiddle) {
  EXPECT_EQ(
      refusal([] {
        longspan::convolution(torch::ones({1, 2, 3, 4}), torch::ones({2, 4}));
      }),
      "convolution: v and weight must be [B, Hk, N, w] and [H, T], T odd and Hk a "
      "divisor of H, got [1, 2, 3, 4] and [2, 4]");
}

}  // namespace
}  // namespace longspan::testing
