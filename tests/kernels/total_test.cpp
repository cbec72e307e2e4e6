#include "longspan/kernels/total.h"

#include <cmath>

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Total, IsTheSum) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
      for (const int64_t count : {0, 1, 7, 8, 4095, 4096, 4097, 50000}) {
        const auto x = random_tensors(1, {count})[0].to(dtype).to(device);
        const auto got = total(x);
        EXPECT_EQ(got.dim(), 0);
        EXPECT_EQ(got.scalar_type(),
                  dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
        EXPECT_NEAR(got.item<double>(), x.to(torch::kDouble).sum().item<double>(),
                    dtype == torch::kDouble ? 1e-10 : 1e-4)
            << count << " of " << dtype << " on " << device;
      }
}

TEST(Total, LosesNothingInLongFloatSums) {
  const auto x = torch::full({1 << 22}, 0.1f);
  EXPECT_FLOAT_EQ(total(x).item<float>(), static_cast<float>(0.1f * double{1 << 22}));
}

TEST(Total, IsTheSameForAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto x = random_tensors(1, {1000, 307}, dtype)[0];
    const auto run = [&](int count) {
      const UseThreads threads(count);
      return total(x);
    };
    EXPECT_TRUE(torch::equal(run(1), run(2)));
    EXPECT_TRUE(torch::equal(run(1), run(3)));
  }
}

TEST(Total, TakesAnyStrides) {
  const auto x = random_tensors(1, {30, 40})[0];
  EXPECT_TRUE(close(total(x.t()), total(x)));
  EXPECT_TRUE(close(total(x.slice(1, 0, 40, 2)), x.slice(1, 0, 40, 2).sum()));
  EXPECT_TRUE(close(total(torch::ones({1}).expand({100})), torch::tensor(100.0)));
}

TEST(Total, HasTheGradientOfItsOutput) {
  const auto x = random_tensors(1, {7, 11});
  const auto f = [](const Tensors& in) { return Tensors{total(in[0].square())}; };
  EXPECT_TRUE(gradients_agree(f, x));
}

TEST(Total, GivesAGradientInTheTypeOfX) {
  const auto x = torch::ones({5}, torch::kBFloat16).requires_grad_();
  total(x).backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({5}, torch::kBFloat16)));
}

TEST(Total, RefusesIntegers) {
  EXPECT_EQ(refusal([] { total(torch::zeros({2}, torch::kLong)); }),
            "total: x must be of a floating type, got Long");
}

TEST(Average, IsTheMean) {
  const auto x = random_tensors(1, {30, 40})[0];
  EXPECT_TRUE(close(average(x), x.mean()));
}

TEST(Average, IsTheMeanOfWhatIsKept) {
  for (const auto device : devices()) {
    const auto x = random_tensors(1, {30, 40})[0].to(device);
    EXPECT_TRUE(close(average(x, x > 0), x.masked_select(x > 0).mean()));
    const auto rows = x.select(1, 0).unsqueeze(1) > 0;  // [30, 1]
    EXPECT_TRUE(close(average(x, rows), x.masked_select(rows).mean()));
  }
}

TEST(Average, IsZeroOfNothing) {
  const auto x = random_tensors(1, {3, 4})[0].requires_grad_();
  const auto nothing = average(x, torch::zeros({4}, torch::kBool));
  EXPECT_EQ(nothing.item<double>(), 0);
  nothing.backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::zeros_like(x)));
  EXPECT_EQ(average(torch::zeros({0})).item<float>(), 0);
}

TEST(Average, DoesNotSeeWhatIsNotKept) {
  const auto x =
      torch::tensor({1.0, 3.0, std::nan("")}, torch::kDouble).requires_grad_();
  const auto mean = average(x, torch::tensor({true, true, false}));
  EXPECT_EQ(mean.item<double>(), 2);
  mean.backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::tensor({0.5, 0.5, 0.0}, torch::kDouble)));
}

TEST(Average, HasTheGradientOfItsOutput) {
  const auto x = random_tensors(1, {7, 11});
  const auto keep = x[0] > 0;
  const auto f = [&](const Tensors& in) {
    return Tensors{average(in[0].square(), keep), average(in[0].square())};
  };
  EXPECT_TRUE(gradients_agree(f, x));
}

TEST(Average, ChecksWhatIsKept) {
  const auto x = torch::zeros({2, 3});
  EXPECT_EQ(refusal([&] { average(x, torch::ones({3})); }),
            "average: keep must be bool, got Float");
  EXPECT_EQ(
      refusal([&] { average(x, torch::ones({2}, torch::kBool)); }),
      "average: keep must be [2, 3], the shape of x, or broadcast to it, got [2]");
}

struct Shapes {
  std::vector<int64_t> from, to;
};

const Shapes kShapes[] = {
    {{3, 4}, {3, 4}},      {{3, 4}, {4}},
    {{3, 4}, {3, 1}},      {{3, 4}, {1, 1}},
    {{3, 4}, {}},          {{2, 3, 4, 5}, {3, 1, 5}},
    {{1, 3}, {3}},         {{0, 4}, {4}},
    {{0, 4}, {1}},         {{4, 0}, {1, 0}},
    {{3000, 36}, {36}},    {{5000, 1}, {1}},
    {{300, 300}, {1, 1}},  {{2, 300, 301}, {2, 1, 1}},
    {{20, 3000}, {20, 1}}, {{300, 7, 40}, {7, 1}},
};

TEST(SumTo, IsTheGradientOfBroadcasting) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
      for (const auto& [from, to] : kShapes) {
        const auto x = random_tensors(1, from)[0].to(dtype).to(device);
        const auto got = longspan::sum_to(x, to);
        EXPECT_EQ(got.scalar_type(), dtype);
        const double tolerance = dtype == torch::kDouble  ? 1e-12
                                 : dtype == torch::kFloat ? 1e-5
                                                          : 1e-2;
        EXPECT_TRUE(close(got, at::sum_to(x.to(torch::kDouble), to), tolerance))
            << from << " to " << to << " of " << dtype << " on " << device;
      }
}

TEST(SumTo, TakesAnyStrides) {
  const auto x = random_tensors(1, {6, 3000, 14})[0];
  for (const auto& y : {x.transpose(0, 1), x.permute({2, 0, 1}), x.slice(2, 0, 14, 2),
                        x.select(2, 0).unsqueeze(2).expand({6, 3000, 5})}) {
    EXPECT_TRUE(close(longspan::sum_to(y, {y.size(2)}), y.sum(0).sum(0)));
    EXPECT_TRUE(close(longspan::sum_to(y, {1, 1}), y.sum().view({1, 1})));
  }
}

TEST(SumTo, HasFirstAndSecondGradients) {
  for (const auto& to : std::vector<std::vector<int64_t>>{{5}, {3, 1}, {1, 1}, {}}) {
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& x) { return Tensors{longspan::sum_to(x[0].square(), to)}; },
        random_tensors(1, {2, 3, 5})));
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& x) {
          const torch::AutoGradMode recording(true);
          const auto y = x[0].requires_grad() ? x[0] : x[0].detach().requires_grad_();
          return torch::autograd::grad({longspan::sum_to(y.pow(3), to).square().sum()},
                                       {y}, {},
                                       /*retain_graph=*/true, /*create_graph=*/true);
        },
        random_tensors(1, {2, 3, 5})));
  }
}

// Rows of columns that LibTorch does not sum alike with 1 and with 3, 5 or 8 threads.
TEST(SumTo, IsTheSameForAnyNumberOfThreads) {
  const auto wide = random_tensors(1, {5000, 74}, torch::kFloat)[0];
  const auto cube = wide.view({50, 100, 74});
  const std::vector<std::pair<Tensor, std::vector<int64_t>>> cases = {
      {wide, {1}},
      {wide, {1, 1}},
      {wide, {74}},
      {wide.slice(1, 0, 37).contiguous(), {37}},
      {wide.slice(1, 0, 36).contiguous(), {36}},
      {wide.slice(1, 0, 14, 2), {7}},
      {wide.t(), {5000}},
      {wide, {5000, 1}},
      {cube, {100, 1}},
      {cube, {50, 1, 1}},
      {cube.permute({2, 0, 1}), {50, 1}}};
  for (const auto& [x, to] : cases) {
    const auto run = [&, &x = x, &to = to](int count) {
      const UseThreads threads(count);
      return longspan::sum_to(x, to);
    };
    const auto once = run(1);
    for (const int count : {2, 3, 5, 8})
      EXPECT_TRUE(torch::equal(run(count), once))
          << x.sizes() << " to " << to << ", " << count << " threads";
  }
}

TEST(SumTo, ChecksTheShape) {
  EXPECT_EQ(refusal([] {
              longspan::sum_to(torch::zeros({2, 3}), {2});
            }),
            "sum to: the shape must be [2, 3], that of x, or broadcast to it, got [2]");
  EXPECT_EQ(refusal([] { longspan::sum_to(torch::zeros({2}, torch::kLong), {1}); }),
            "sum to: x must be of a floating type, got Long");
}

TEST(Spread, IsBroadcasting) {
  for (const auto& [to, from] : kShapes) {
    const auto x = random_tensors(1, from)[0];
    const auto got = spread(x, to);
    EXPECT_TRUE(torch::equal(got, x.expand(to)));
    EXPECT_TRUE(got.is_alias_of(x));
  }
  EXPECT_TRUE(
      torch::equal(spread(torch::arange(3), {2, 3}), torch::arange(3).expand({2, 3})));
}

TEST(Spread, HasFirstAndSecondGradients) {
  const auto square = [](const Tensors& x) {
    return Tensors{spread(x[0], {2, 3, 4}).square()};
  };
  const auto slope = [](const Tensors& x) {
    const torch::AutoGradMode recording(true);
    const auto y = x[0].requires_grad() ? x[0] : x[0].detach().requires_grad_();
    return torch::autograd::grad({spread(y, {2, 3, 4}).pow(3).sum()}, {y}, {},
                                 /*retain_graph=*/true, /*create_graph=*/true);
  };
  for (const auto& from : std::vector<std::vector<int64_t>>{{4}, {3, 1}, {1}, {}}) {
    EXPECT_TRUE(gradients_agree(square, random_tensors(1, from)));
    EXPECT_TRUE(gradients_agree(slope, random_tensors(1, from)));
  }
}

TEST(Spread, ChecksTheShape) {
  EXPECT_EQ(refusal([] {
              spread(torch::zeros({2}), {2, 3});
            }),
            "spread: x must be [2, 3] or broadcast to it, got [2]");
}

}  // namespace
}  // namespace longspan::testing
