#include "longspan/kernels/dropout.h"

#include <cmath>

#include "longspan/base/threads.h"
#include "longspan/kernels/random_numbers.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Key kKey{42};

TEST(Dropout, KeepsWhatItsWordsSay) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
      const auto x = random_tensors(1, {5, 67})[0].to(dtype).to(device);
      const auto keep =
          random_words(kKey, x.sizes(), device) >= static_cast<int64_t>(0x40000000);
      const auto inner = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
      const auto expected =
          (x.to(inner) * (4.0 / 3)).to(dtype).masked_fill(keep.logical_not(), 0);
      const auto got = dropout(x, 0.25, kKey);
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_TRUE(close(got, expected, dtype == torch::kDouble ? 1e-15 : 1e-6))
          << dtype << " on " << device;
    }
}

TEST(Dropout, DropsAsOftenAsAsked) {
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    constexpr int64_t kCount = 1 << 18;
    const auto y = dropout(torch::ones({kCount}, torch::kDouble), p, kKey);
    EXPECT_NEAR((y == 0).to(torch::kDouble).mean().item<double>(), p,
                6 * std::sqrt(p * (1 - p) / kCount));
    EXPECT_NEAR(y.max().item<double>(), 1 / (1 - p), 1e-12);
  }
}

TEST(Dropout, KeepsAllWithProbabilityZero) {
  const auto x = random_tensors(1, {31})[0];
  EXPECT_TRUE(torch::equal(dropout(x, 0, kKey), x));
}

TEST(Dropout, DropsNearlyAllWithProbabilityNearlyOne) {
  const auto y = dropout(torch::ones({1000}), 1 - 1e-12, kKey);
  EXPECT_EQ(y.count_nonzero().item<int64_t>(), 0);
}

TEST(Dropout, DropsNaNs) {
  const auto y = dropout(torch::full({1000}, NAN), 0.5, kKey);
  EXPECT_TRUE(torch::equal(y == 0, random_words(kKey, {1000}) < (int64_t{1} << 31)));
}

TEST(Dropout, NumbersTheElementsOfContiguousX) {
  const auto x = random_tensors(1, {8, 9})[0].t();
  EXPECT_TRUE(torch::equal(dropout(x, 0.5, kKey), dropout(x.contiguous(), 0.5, kKey)));
}

TEST(Dropout, HasTheGradientOfItsOutput) {
  const auto x = random_tensors(1, {7, 11});
  const auto f = [](const Tensors& in) { return Tensors{dropout(in[0], 0.3, kKey)}; };
  EXPECT_TRUE(gradients_agree(f, x));
}

TEST(Dropout, DrawsTheSameMaskBackwards) {
  const auto x = torch::ones({4, 100}).requires_grad_();
  const auto y = dropout(x, 0.5, kKey);
  EXPECT_TRUE(torch::equal(
      torch::autograd::grad({y}, {x}, {torch::ones({1}).expand({4, 100})})[0], y));
}

TEST(Dropout, DiffersByKey) {
  const auto x = torch::ones({200});
  EXPECT_FALSE(torch::equal(dropout(x, 0.5, kKey), dropout(x, 0.5, mix(kKey, 1))));
  EXPECT_TRUE(torch::equal(dropout(x, 0.5, kKey), dropout(x, 0.5, kKey)));
}

TEST(Dropout, IsTheSameForAnyNumberOfThreads) {
  const auto x = random_tensors(1, {100003}, torch::kFloat)[0];
  const auto run = [&](int count) {
    const UseThreads threads(count);
    return dropout(x, 0.1, kKey);
  };
  EXPECT_TRUE(torch::equal(run(1), run(2)));
  EXPECT_TRUE(torch::equal(run(1), run(3)));
}

TEST(Dropout, IsTheSameOnEveryDevice) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
      for (const int64_t count : {1, 333, 4096})
        for (const int64_t offset : {0, 1}) {  // where 16 bytes do not begin
          const auto memory = random_tensors(1, {count + 1})[0].to(dtype);
          const auto x = memory.slice(0, offset, offset + count);
          const auto there = memory.to(device).slice(0, offset, offset + count);
          EXPECT_TRUE(
              torch::equal(dropout(there, 0.1, kKey).cpu(), dropout(x, 0.1, kKey)))
              << count << " of " << dtype << " on " << device;
        }
}

TEST(Dropout, TakesTensorsWithoutElements) {
  EXPECT_EQ(dropout(torch::zeros({0, 3}), 0.5, kKey).numel(), 0);
}

TEST(Dropout, RefusesWhatItCannotDo) {
  const auto x = torch::zeros({2});
  EXPECT_EQ(refusal([&] { dropout(x, 1, kKey); }),
            "dropout: the probability must be in [0, 1), got 1");
  EXPECT_EQ(refusal([&] { dropout(x, -0.5, kKey); }),
            "dropout: the probability must be in [0, 1), got -0.5");
  EXPECT_EQ(refusal([&] { dropout(x.to(torch::kLong), 0.5, kKey); }),
            "dropout: x must be of a floating type, got Long");
}

}  // namespace
}  // namespace longspan::testing
