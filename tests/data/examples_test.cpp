#include "longspan/data/examples.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Ids = std::vector<int32_t>;

Examples examples_of(const std::vector<std::pair<Ids, int64_t>>& list) {
  Examples examples;
  for (const auto& [ids, label] : list) examples.add(ids, label);
  return examples;
}

const std::vector<std::pair<Ids, int64_t>> kSome = {
    {{5, 6}, 1}, {{}, 0}, {{7, 8, 9}, 2}, {{1}, 1}};

TEST(TheExamples, AreWhatWasAdded) {
  const Examples examples = examples_of(kSome);
  ASSERT_EQ(examples.size(), 4);
  for (int64_t i = 0; i < 4; ++i) {
    const auto ids = examples.ids(i);
    EXPECT_EQ(Ids(ids.begin(), ids.end()), kSome[i].first);
    EXPECT_EQ(examples.length(i), std::ssize(kSome[i].first));
    EXPECT_EQ(examples.label(i), kSome[i].second);
  }
  EXPECT_EQ(examples.longest(), 3);
  EXPECT_EQ(Examples().size(), 0);
  EXPECT_EQ(Examples().longest(), 0);
}

TEST(TheExamples, HaveAFingerprintOfEverything) {
  const uint32_t print = examples_of(kSome).fingerprint();
  EXPECT_EQ(examples_of(kSome).fingerprint(), print);
  const std::vector<std::pair<Ids, int64_t>> others[] = {
      {},
      {{{5, 6}, 1}, {{}, 0}, {{7, 8, 9}, 2}},            // one less
      {{{5, 6}, 1}, {{}, 0}, {{7, 8, 9}, 2}, {{2}, 1}},  // another id
      {{{5, 6}, 1}, {{}, 0}, {{7, 8, 9}, 2}, {{1}, 0}},  // another label
      {{{5, 6}, 1}, {{7}, 0}, {{8, 9}, 2}, {{1}, 1}},    // cut elsewhere
      {{{}, 0}, {{5, 6}, 1}, {{7, 8, 9}, 2}, {{1}, 1}},  // another order
      {{{6, 5}, 1}, {{}, 0}, {{7, 8, 9}, 2}, {{1}, 1}},
      {{{5, 6}, 0}, {{}, 1}, {{7, 8, 9}, 2}, {{1}, 1}}};
  for (const auto& other : others) EXPECT_NE(examples_of(other).fingerprint(), print);
}

TEST(ABatch, IsPaddedToItsLongest) {
  const std::vector<int64_t> numbers = {2, 0, 3};
  const Batch batch = examples_of(kSome).batch(numbers);
  EXPECT_TRUE(torch::equal(
      batch.ids, torch::tensor({{7, 8, 9}, {5, 6, 0}, {1, 0, 0}}, torch::kLong)));
  EXPECT_TRUE(torch::equal(
      batch.tokens, torch::tensor({{1, 1, 1}, {1, 1, 0}, {1, 0, 0}}).to(torch::kBool)));
  EXPECT_TRUE(torch::equal(batch.labels, torch::tensor({2, 1, 1}, torch::kLong)));
  EXPECT_EQ(batch.real_tokens, 6);
  EXPECT_TRUE(torch::equal(batch.padding_mask(), batch.tokens));
  EXPECT_EQ(batch.examples(), 3);
}

TEST(ABatch, TakesAnExampleTwice) {
  const std::vector<int64_t> numbers = {3, 3};
  const Batch batch = examples_of(kSome).batch(numbers);
  EXPECT_TRUE(torch::equal(batch.ids, torch::ones({2, 1}, torch::kLong)));
  EXPECT_EQ(batch.real_tokens, 2);
  EXPECT_FALSE(batch.padding_mask().defined());
}

TEST(ABatch, ShowsPaddingForAnExampleWithoutTokens) {
  const std::vector<int64_t> numbers = {1};
  const Batch batch = examples_of(kSome).batch(numbers);
  EXPECT_TRUE(torch::equal(batch.ids, torch::zeros({1, 1}, torch::kLong)));
  EXPECT_TRUE(torch::equal(batch.tokens, torch::zeros({1, 1}, torch::kBool)));
  EXPECT_TRUE(torch::equal(batch.labels, torch::zeros(1, torch::kLong)));
  EXPECT_EQ(batch.real_tokens, 0);
  EXPECT_TRUE(batch.padding_mask().defined());
}

TEST(ABatch, IsPaddedToWhatIsAsked) {
  const std::vector<int64_t> numbers = {2, 0};
  const Batch batch = examples_of(kSome).batch(numbers);
  const Batch padded = examples_of(kSome).batch(numbers, {.tokens = 16});
  EXPECT_EQ(padded.ids.size(1), 16);
  const int64_t tokens = batch.ids.size(1);
  EXPECT_TRUE(torch::equal(padded.ids.narrow(1, 0, tokens), batch.ids));
  EXPECT_TRUE(torch::equal(padded.tokens.narrow(1, 0, tokens), batch.tokens));
  EXPECT_FALSE(padded.tokens.narrow(1, tokens, 16 - tokens).any().item<bool>());
  EXPECT_EQ(padded.real_tokens, batch.real_tokens);
}

TEST(ABatch, NeedsAnExample) {
  EXPECT_EQ(refusal([] { examples_of(kSome).batch({}); }),
            "a batch needs at least one example");
}

TEST(ABatch, GoesToADevice) {
  const std::vector<int64_t> numbers = {2, 0};
  const Batch here = examples_of(kSome).batch(numbers);
  for (const auto device : devices()) {
    const Batch there = here.to(device);
    for (const auto& tensor : {there.ids, there.tokens, there.labels})
      EXPECT_EQ(tensor.device(), device);
    EXPECT_TRUE(torch::equal(there.ids.cpu(), here.ids));
    EXPECT_TRUE(torch::equal(there.tokens.cpu(), here.tokens));
    EXPECT_TRUE(torch::equal(there.labels.cpu(), here.labels));
    EXPECT_EQ(there.real_tokens, 5);
  }
}

TEST(TheExamples, AreCutAndCounted) {
  Examples examples;
  examples.add(std::vector<int32_t>{1, 2, 3}, 0, 3);
  examples.add(std::vector<int32_t>{1, 2, 3, 4}, 1, 3);
  examples.add(std::vector<int32_t>{1, 2, 3, 4}, 1);
  EXPECT_EQ(examples.length(0), 3);
  EXPECT_EQ(examples.length(1), 3);
  EXPECT_EQ(examples.length(2), 4);
  EXPECT_EQ(examples.cut(), 1);
}

}  // namespace
}  // namespace longspan::testing
