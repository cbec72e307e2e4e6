#include "longspan/data/order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Numbers = std::vector<int64_t>;

Numbers count_up(int64_t count) {
  Numbers all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

Numbers sorted(Numbers numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

// Lengths from 1 to 1000, always the same.
Numbers some_lengths(int64_t count) {
  Numbers lengths;
  for (int64_t i = 0; i < count; ++i)
    lengths.push_back(1 +
                      philox(Key{7}, {static_cast<uint32_t>(i), 0, 0, 0})[0] % 1000);
  return lengths;
}

// The tokens of padding in batches of `batch`.
int64_t padding(const Numbers& numbers, const Numbers& lengths, int64_t batch) {
  int64_t total = 0;
  for (size_t first = 0; first < numbers.size(); first += batch) {
    const size_t last = std::min(numbers.size(), first + batch);
    int64_t longest = 0, tokens = 0;
    for (size_t i = first; i < last; ++i) {
      longest = std::max(longest, lengths[numbers[i]]);
      tokens += lengths[numbers[i]];
    }
    total += longest * static_cast<int64_t>(last - first) - tokens;
  }
  return total;
}

TEST(APermutation, HasEveryNumberOnce) {
  for (const int64_t count : {0, 1, 2, 3, 64, 1000}) {
    const auto order = permutation(count, Key{1});
    EXPECT_EQ(sorted(order), count_up(count));
    EXPECT_EQ(permutation(count, Key{1}), order);
  }
  EXPECT_NE(permutation(100, Key{1}), permutation(100, Key{2}));
}

TEST(APermutation, IsAnyOneAsOftenAsAnother) {
  constexpr int kDraws = 12000, kOrders = 120;
  std::map<Numbers, int> counts;
  for (int draw = 0; draw < kDraws; ++draw)
    ++counts[permutation(5, mix(Key{3}, static_cast<uint64_t>(draw)))];
  EXPECT_EQ(counts.size(), size_t{kOrders});
  constexpr double kExpected = static_cast<double>(kDraws) / kOrders;
  double chi_square = 0;
  for (const auto& [order, count] : counts)
    chi_square += (count - kExpected) * (count - kExpected) / kExpected;
  // 119 degrees of freedom: 119 on average, a deviation of 15.4.
  EXPECT_NEAR(chi_square, 119, 60);
}

TEST(APermutation, BringsEveryNumberToEveryPlace) {
  constexpr int kDraws = 4000;
  constexpr int64_t kCount = 40;
  std::vector<double> counts(kCount * kCount);
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto order = permutation(kCount, mix(Key{5}, static_cast<uint64_t>(draw)));
    for (int64_t place = 0; place < kCount; ++place)
      ++counts[place * kCount + order[place]];
  }
  constexpr double kExpected = static_cast<double>(kDraws) / kCount;
  double chi_square = 0;
  for (const double count : counts)
    chi_square += (count - kExpected) * (count - kExpected) / kExpected;
  // 39 * 39 degrees of freedom: 1521 on average, a deviation of 55.
  EXPECT_NEAR(chi_square, 1521, 250);
}

TEST(AnOrder, HasEachExampleOnceAnEpoch) {
  for (const int64_t count : {1, 2, 7, 50})
    for (const int64_t bucket : {0, 1, 3, 100}) {
      Order order(some_lengths(count), {.seed = 1, .batch = 4, .bucket = bucket});
      for (int64_t epoch = 0; epoch < 5; ++epoch)
        EXPECT_EQ(sorted(order.numbers(epoch * count, count)), count_up(count))
            << count << " examples, bucket " << bucket << ", epoch " << epoch;
    }
}

TEST(AnOrder, IsAnotherOneEachEpochAndForEachSeed) {
  constexpr int64_t kCount = 50;
  for (const int64_t bucket : {0, 4}) {
    Order order(some_lengths(kCount), {.seed = 1, .batch = 4, .bucket = bucket});
    Order other(some_lengths(kCount), {.seed = 2, .batch = 4, .bucket = bucket});
    for (int64_t epoch = 0; epoch < 5; ++epoch) {
      const auto numbers = order.numbers(epoch * kCount, kCount);
      EXPECT_NE(numbers, order.numbers((epoch + 1) * kCount, kCount));
      EXPECT_NE(numbers, other.numbers(epoch * kCount, kCount));
    }
  }
}

TEST(AnOrder, DoesNotDependOnHowItIsCut) {
  constexpr int64_t kCount = 23, kAll = 200;
  for (const int64_t bucket : {0, 2}) {
    const OrderOptions options{.seed = 9, .batch = 5, .bucket = bucket};
    Order order(some_lengths(kCount), options);
    const auto whole = order.numbers(0, kAll);
    for (const int64_t piece : {1, 5, 7, 23, 64}) {
      Order cut(some_lengths(kCount), options);
      Numbers joined;
      for (int64_t first = 0; first < kAll; first += piece) {
        const auto more = cut.numbers(first, std::min(piece, kAll - first));
        joined.insert(joined.end(), more.begin(), more.end());
      }
      EXPECT_EQ(joined, whole) << piece;
    }
    for (const int64_t first : {150, 3, 199, 0, 46, 45}) {
      const auto part = order.numbers(first, 1);
      EXPECT_EQ(part, Numbers{whole[first]}) << first;
      EXPECT_EQ(Order(some_lengths(kCount), options).numbers(first, 1), part) << first;
    }
    EXPECT_TRUE(order.numbers(17, 0).empty());
  }
}

TEST(AnOrder, PadsLessInBuckets) {
  constexpr int64_t kCount = 1000, kBatch = 8;
  const auto lengths = some_lengths(kCount);
  const auto padding_of = [&](int64_t bucket, int64_t epoch) {
    Order order(lengths, {.seed = 1, .batch = kBatch, .bucket = bucket});
    return padding(order.numbers(epoch * kCount, kCount), lengths, kBatch);
  };
  for (const int64_t epoch : {0, 1, 5}) {
    EXPECT_LT(padding_of(4, epoch), padding_of(0, epoch) / 2);
    EXPECT_LT(padding_of(50, epoch), padding_of(4, epoch) / 3);
    EXPECT_EQ(padding_of(1, epoch), padding_of(0, epoch));
  }
}

TEST(AnOrder, PadsLessInBucketsThatDoNotFillAnEpoch) {
  constexpr int64_t kCount = 1003, kBatch = 8, kEpochs = 5;
  const auto lengths = some_lengths(kCount);
  const auto padding_of = [&](int64_t bucket) {
    Order order(lengths, {.seed = 1, .batch = kBatch, .bucket = bucket});
    return padding(order.numbers(0, kEpochs * kCount), lengths, kBatch);
  };
  EXPECT_LT(padding_of(50), padding_of(0) / 6);
}

TEST(AnOrder, DrawsTheOrderOfItsBuckets) {
  constexpr int64_t kCount = 400, kBatch = 4;
  const auto lengths = some_lengths(kCount);
  Order order(lengths, {.seed = 1, .batch = kBatch, .bucket = 100});
  const auto numbers = order.numbers(0, kCount);
  int64_t rises = 0;  // of the first length from one batch to the next
  for (int64_t i = kBatch; i < kCount; i += kBatch)
    rises += lengths[numbers[i]] > lengths[numbers[i - kBatch]] ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(rises), 50, 20);
}

TEST(AnOrder, NeedsExamples) {
  EXPECT_EQ(refusal([] { Order({}, {}); }), "there are no examples to train on");
}

}  // namespace
}  // namespace longspan::testing
