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

}  // namespace
}  // namespace longspan::testing
