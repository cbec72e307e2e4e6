#include "longspan/base/threads.h"

#include <atomic>
#include <thread>

#include <ATen/Parallel.h>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Threads, AreSetAndRestored) {
  const int before = at::get_num_threads();
  {
    const UseThreads three(3);
    EXPECT_EQ(at::get_num_threads(), 3);
    {
      const UseThreads one(1);
      EXPECT_EQ(at::get_num_threads(), 1);
    }
    EXPECT_EQ(at::get_num_threads(), 3);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Threads, ComputeTheSameProduct) {
  const auto x = random_tensors(2, {64, 64});
  const auto expected = x[0].matmul(x[1]);
  for (const int count : {1, 2, 3}) {
    const UseThreads threads(count);
    EXPECT_TRUE(close(x[0].matmul(x[1]), expected));
  }
}

TEST(Threads, AreAtMostAsManyAsTheMachineHas) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(Threads, OfTheBlasAreRestored) {
  const int before = at::get_num_threads();
  { const OneBlasThread one; }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Threads, RefuseNone) {
  EXPECT_EQ(refusal([] { set_threads(0); }), "threads: must be 1 or more, got 0");
}

// A build whose loops were compiled without OpenMP computes on one thread, silently.
TEST(Threads, RunTheLoopsOfThisBuild) {
  const UseThreads two(2);
  std::atomic<int> parts = 0;
  at::parallel_for(0, 2, 1, [&](int64_t, int64_t) { ++parts; });
  EXPECT_EQ(parts, 2);
}

TEST(Blas, HasAName) {
  const BlasFacts facts = blas_facts();
  EXPECT_FALSE(facts.name.empty());
  EXPECT_EQ(facts.slow, facts.name == "reference BLAS");
}

}  // namespace
}  // namespace longspan::testing
