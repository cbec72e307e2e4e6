#include "longspan/data/prefetch.h"

#include <atomic>
#include <chrono>
#include <memory>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

// Waits until `count` is reached, or for some seconds.
void wait_for(const std::atomic<int>& made, int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (made < count && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
}

TEST(APrefetch, GivesWhatIsMadeInOrder) {
  for (const int64_t ahead : {0, 1, 2, 7}) {
    Prefetch<int> numbers([next = 0]() mutable { return next++; }, ahead);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(numbers.next(), i) << ahead;
  }
}

TEST(APrefetch, WorksAheadButNotFarther) {
  constexpr int kAhead = 3;
  std::atomic<int> made = 0;
  Prefetch<int> numbers([&] { return ++made; }, kAhead);
  wait_for(made, kAhead);
  for (int taken = 1; taken < 50; ++taken) {
    EXPECT_EQ(numbers.next(), taken);
    wait_for(made, kAhead + taken);
    EXPECT_EQ(made, kAhead + taken);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(made, kAhead + 49);
}

TEST(APrefetch, MakesOnAThreadOfItsOwn) {
  Prefetch<std::thread::id> there([] { return std::this_thread::get_id(); }, 2);
  EXPECT_NE(there.next(), std::this_thread::get_id());
  Prefetch<std::thread::id> here([] { return std::this_thread::get_id(); }, 0);
  EXPECT_EQ(here.next(), std::this_thread::get_id());
}

TEST(APrefetch, MakesNothingAheadOfTimeWithoutAhead) {
  int made = 0;
  Prefetch<int> numbers([&] { return ++made; }, 0);
  EXPECT_EQ(made, 0);
  EXPECT_EQ(numbers.next(), 1);
  EXPECT_EQ(made, 1);
}

TEST(APrefetch, FailsAfterTheResultsBeforeTheFailure) {
  for (const int64_t ahead : {0, 1, 2, 10}) {
    std::atomic<int> made = 0;
    Prefetch<int> numbers(
        [&] {
          require(made < 5, "no more");
          return ++made;
        },
        ahead);
    if (ahead > 5) wait_for(made, 5);
    for (int i = 1; i <= 5; ++i) ASSERT_EQ(numbers.next(), i) << ahead;
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(refusal([&] { numbers.next(); }), "no more") << ahead;
  }
}

TEST(APrefetch, EndsWhetherAnythingIsTakenOrNot) {
  for (const int taken : {0, 1, 20}) {
    std::atomic<int> made = 0;
    {
      Prefetch<int> numbers([&] { return ++made; }, 2);
      for (int i = 0; i < taken; ++i) numbers.next();
      wait_for(made, taken + 2);  // from here on the maker waits
    }
    EXPECT_EQ(made, taken + 2);
  }
}

TEST(APrefetch, EndsWithAFailureThatNobodyTook) {
  std::atomic<int> made = 0;
  {
    const Prefetch<int> numbers(
        [&]() -> int {
          ++made;
          fail("not seen");
        },
        2);
    wait_for(made, 1);
  }
  EXPECT_EQ(made, 1);
}

TEST(APrefetch, TakesWhatCannotBeCopied) {
  for (const int64_t ahead : {0, 2}) {
    Prefetch<std::unique_ptr<int>> numbers(
        [next = 0]() mutable { return std::make_unique<int>(next++); }, ahead);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(*numbers.next(), i);
  }
}

}  // namespace
}  // namespace longspan::testing
