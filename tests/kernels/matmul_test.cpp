#include "longspan/kernels/matmul.h"

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

struct Shapes {
  std::vector<int64_t> a, b;
};

const Shapes kShapes[] = {
    {{1, 1}, {1, 1}},
    {{3, 5}, {5, 7}},
    {{600, 64}, {64, 700}},
    {{64, 1551}, {1551, 64}},
    {{2, 3, 9, 4}, {4, 6}},
    {{1, 3, 9, 4}, {2, 1, 4, 6}},
    {{12, 130, 517}, {12, 517, 16}},
    {{0, 4}, {4, 3}},
    {{2, 0}, {0, 3}},
    {{1, 700000}, {700000, 1}},
    {{1, 3000}, {3000, 501}},
    {{65, 65}, {65, 65}},
};

TEST(Matmul, EqualsLibTorchs) {
  for (const auto& [a, b] : kShapes) {
    const auto x = random_tensors(1, a)[0],
               y = random_tensors(1, b, torch::kDouble, 1)[0];
    EXPECT_TRUE(close(longspan::matmul(x, y), torch::matmul(x, y), 1e-12))
        << a << " " << b;
  }
}

TEST(Matmul, TakesAnyStrides) {
  const auto x = random_tensors(1, {9, 4, 5, 6})[0];
  const auto a = x.transpose(1, 3), b = x.permute({0, 3, 1, 2});
  EXPECT_TRUE(close(longspan::matmul(a, b), torch::matmul(a, b)));
  const auto wide = random_tensors(1, {64, 128})[0];
  const auto every_second = wide.slice(0, 0, 64, 2).slice(1, 0, 128, 2);
  EXPECT_TRUE(
      close(longspan::matmul(every_second, wide), torch::matmul(every_second, wide)));
}

TEST(Matmul, HasTheGradientOfTheProduct) {
  for (const Shapes& shapes :
       {Shapes{{3, 5}, {5, 7}}, Shapes{{1, 3, 4, 2}, {2, 1, 2, 5}},
        Shapes{{2, 3, 4}, {4, 5}}}) {
    EXPECT_TRUE(gradients_agree(
        [](const Tensors& x) -> Tensors { return {longspan::matmul(x[0], x[1])}; },
        {random_tensors(1, shapes.a)[0], random_tensors(1, shapes.b)[0]}));
  }
}

TEST(Matmul, HasASecondGradient) {
  EXPECT_TRUE(gradients_agree(
      [](const Tensors& x) -> Tensors {
        const auto a = x[0].requires_grad() ? x[0] : x[0].detach().requires_grad_();
        torch::AutoGradMode recording(true);
        return torch::autograd::grad({longspan::matmul(a, x[1]).pow(3).sum()}, {a}, {},
                                     /*retain_graph=*/true, /*create_graph=*/true);
      },
      random_tensors(2, {4, 4}, torch::kDouble, 3)));
}

// The output of `f` and the gradients of `inputs` have the same bits with any number of
// threads.
void expect_repeats(const std::function<Tensor()>& f, const Tensors& inputs,
                    const std::string& label) {
  const auto results = [&](int threads) {
    const UseThreads using_threads(threads);
    const Tensor out = f();
    auto all = torch::autograd::grad({out}, inputs, {torch::cos(out.detach())});
    all.push_back(out);
    return all;
  };
  const auto once = results(1);
  for (const int threads : {1, 2, 3, 5, 8}) {
    const auto again = results(threads);
    for (size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(once[i].equal(again[i]))
          << label << ", result " << i << ", " << threads << " threads";
  }
}

TEST(Matmul, RepeatsBitForBitWithAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    for (const auto& [a, b] : kShapes) {
      const auto x = random_tensors(1, a, dtype)[0].requires_grad_();
      const auto y = random_tensors(1, b, dtype, 1)[0].requires_grad_();
      std::ostringstream label;
      label << a << " x " << b;
      expect_repeats([&] { return longspan::matmul(x, y); }, {x, y}, label.str());
    }
  }
}

TEST(Linear, EqualsLibTorchs) {
  const auto x = random_tensors(1, {3, 517, 33}, torch::kFloat)[0];
  const auto w = random_tensors(1, {77, 33}, torch::kFloat, 1)[0];
  const auto b = random_tensors(1, {77}, torch::kFloat, 2)[0];
  EXPECT_TRUE(close(longspan::linear(x, w, b), torch::linear(x, w, b), 1e-5));
  EXPECT_TRUE(close(longspan::linear(x, w), torch::linear(x, w), 1e-5));
}

// 1 and 37: where LibTorch's sum over rows, of the bias, does not repeat.
TEST(Linear, RepeatsBitForBitWithAnyNumberOfThreads) {
  const auto x = random_tensors(1, {3, 15000, 33}, torch::kFloat)[0].requires_grad_();
  for (const int64_t out : {1, 37, 77}) {
    const auto w = random_tensors(1, {out, 33}, torch::kFloat, 1)[0].requires_grad_();
    const auto b = random_tensors(1, {out}, torch::kFloat, 2)[0].requires_grad_();
    expect_repeats([&] { return longspan::linear(x, w, b); }, {x, w, b},
                   "out " + std::to_string(out));
  }
}

TEST(Matmul, LeavesTheNumberOfThreadsAlone) {
  const UseThreads threads(3);
  const auto x = random_tensors(1, {1, 700000}, torch::kFloat)[0];
  longspan::matmul(x, x.t());
  EXPECT_EQ(at::get_num_threads(), 3);
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  const auto a = torch::ones({2, 3});
  EXPECT_EQ(refusal([&] { longspan::matmul(a, a); }),
            "matmul: a and b must be [.., m, k] and [.., k, n], got [2, 3] and [2, 3]");
  EXPECT_EQ(
      refusal([&] { longspan::matmul(a, a.t().to(torch::kDouble)); }),
      "matmul: a and b must have one type and device, got Float on cpu and Double "
      "on cpu");
  EXPECT_EQ(
      refusal([&] {
        longspan::linear(a, torch::ones({4, 2}));
      }),
      "linear: x and weight must be [.., in] and [out, in], got [2, 3] and [4, 2]");
  EXPECT_EQ(refusal([&] {
              longspan::linear(a, torch::ones({4, 3}), torch::ones(3));
            }),
            "linear: bias must be [4], got [3]");
}

}  // namespace
}  // namespace longspan::testing
