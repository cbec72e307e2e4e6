#include "longspan/kernels/random_numbers.h"

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Key kKey{0x0123456789abcdef};

// Philox as the paper writes it: S-boxes, then a permutation of the words.
std::array<uint32_t, 4> philox_again(std::array<uint32_t, 2> k,
                                     std::array<uint32_t, 4> c, int rounds) {
  const auto high = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>((static_cast<unsigned __int128>(a) * b) >> 32);
  };
  for (int round = 0; round < rounds; ++round) {
    if (round > 0) k = {k[0] + 0x9e3779b9u, k[1] + 0xbb67ae85u};
    c = {high(0xcd9e8d57u, c[2]) ^ c[1] ^ k[0], 0xcd9e8d57u * c[2],
         high(0xd2511f53u, c[0]) ^ c[3] ^ k[1], 0xd2511f53u * c[0]};
  }
  return c;
}

TEST(Philox, IsThePapers) {
  // From the known answers that come with Random123, for 10 rounds.
  EXPECT_EQ(philox_again({0, 0}, {0, 0, 0, 0}, 10),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::array<uint32_t, 4> counter = {0x243f6a88, 0x85a308d3, 0x13198a2e,
                                           0x03707344};
  EXPECT_EQ(philox_again({0xa4093822, 0x299f31d0}, counter, 10),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  // Ours has 7.
  EXPECT_EQ(philox({0x299f31d0a4093822}, counter),
            philox_again({0xa4093822, 0x299f31d0}, counter, 7));
}

TEST(PhiloxWords, EqualPhiloxWordForWord) {
  const std::vector<int64_t> values = {
      0, 1, 2, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xdeadbeef, 0xffffffff};
  const auto c = torch::tensor(values, torch::kLong);
  const auto other = c.flip(0);
  for (const Key key : {Key{0}, kKey, Key{~uint64_t{0}}})
    for (const auto device : devices()) {
      const auto got = philox_words(key, c.to(device).unsqueeze(1), other.to(device),
                                    c.to(device), other.to(device))
                           .cpu();
      ASSERT_EQ(got.sizes(), (std::vector<int64_t>{9, 9, 4}));
      const auto words = got.accessor<int64_t, 3>();
      for (int i = 0; i < 9; ++i)
        for (int j = 0; j < 9; ++j) {
          const auto word = [&](int n) { return static_cast<uint32_t>(values[n]); };
          const auto expected =
              philox(key, {word(i), word(8 - j), word(j), word(8 - j)});
          for (int w = 0; w < 4; ++w) ASSERT_EQ(words[i][j][w], int64_t{expected[w]});
        }
    }
}

TEST(PhiloxWords, RefuseOtherTypes) {
  const auto zero = torch::zeros({1}, torch::kInt);
  EXPECT_EQ(refusal([&] { philox_words(kKey, zero, zero, zero, zero); }),
            "philox words: counters must be int64, got Int");
}

TEST(RandomWords, AreThoseOfTheirPlaces) {
  for (const auto device : devices()) {
    const auto words = random_words(kKey, {3, 7}, device).cpu().flatten();
    for (int64_t e = 0; e < words.numel(); ++e)
      EXPECT_EQ(words[e].item<int64_t>(), int64_t{words_at(kKey, e / 4)[e % 4]});
    EXPECT_TRUE(torch::equal(random_words(kKey, {10007}, device).cpu(),
                             random_words(kKey, {10007})));
  }
}

TEST(FillWords, EqualsOnePlaceAtATime) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{0xfffffff0}, uint64_t{1} << 40})
    for (const int64_t count : {0, 1, 15, 16, 17, 50}) {
      std::vector<uint32_t> words(4 * count + 1, 7);
      fill_words(kKey, first, count, words.data());
      for (int64_t i = 0; i < 4 * count; ++i)
        ASSERT_EQ(words[i], words_at(kKey, first + i / 4)[i % 4]) << first << ", " << i;
      EXPECT_EQ(words.back(), 7u) << "written beside the words";
    }
}

TEST(RandomWords, AreTheSameInTensorOperations) {
  const auto place = torch::arange(25, torch::kLong);
  const auto zero = torch::zeros({1}, torch::kLong);
  EXPECT_TRUE(torch::equal(random_words(kKey, {100}),
                           philox_words(kKey, place, zero, zero, zero).flatten()));
}

TEST(RandomWords, AreTheSameForAnyNumberOfThreads) {
  const auto run = [](int count) {
    const UseThreads threads(count);
    return random_words(kKey, {100003});
  };
  EXPECT_TRUE(torch::equal(run(1), run(2)));
  EXPECT_TRUE(torch::equal(run(1), run(3)));
}

TEST(RandomWords, DifferByKey) {
  EXPECT_FALSE(
      torch::equal(random_words(kKey, {64}), random_words(mix(kKey, 1), {64})));
}

TEST(RandomWords, MayBeNone) { EXPECT_EQ(random_words(kKey, {0, 3}).numel(), 0); }

TEST(Uniform, IsEvenlySpread) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
      constexpr int64_t kCount = 1 << 18;
      const auto drawn =
          uniform(kKey, {kCount}, torch::TensorOptions(dtype).device(device));
      EXPECT_EQ(drawn.scalar_type(), dtype);
      const auto x = drawn.to(torch::kDouble);
      EXPECT_GE(x.min().item<double>(), 0);
      EXPECT_LT(x.max().item<double>(), 1);
      // Six standard errors, and half a step of bfloat16.
      const double step = dtype == torch::kBFloat16 ? 1.0 / 256 : 0;
      EXPECT_NEAR(x.mean().item<double>(), 0.5 - step / 2, 6 * 0.2887 / 512 + 2.5e-4);
      EXPECT_NEAR(x.var().item<double>(), 1.0 / 12, 6 * 0.0745 / 512);
    }
}

TEST(Uniform, KeepsTheUpperBits) {
  const auto words = random_words(kKey, {50});
  EXPECT_TRUE(torch::equal(uniform(kKey, {50}, torch::kDouble),
                           words.to(torch::kDouble) / 4294967296.0));
  EXPECT_TRUE(
      close(uniform(kKey, {50}), words.to(torch::kDouble) / 4294967296.0, 1e-7));
}

TEST(Uniform, RefusesIntegers) {
  EXPECT_EQ(refusal([] { uniform(kKey, {2}, torch::kLong); }),
            "uniform: the type must be a floating one, got Long");
}

}  // namespace
}  // namespace longspan::testing
