#include "longspan/base/memory.h"

#include <thread>

#include <c10/core/CPUAllocator.h>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

Tensor bytes(int64_t count) { return torch::empty({count}, torch::kByte); }

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    reuse_memory();
    release_cached_memory();
  }
};

TEST_F(Memory, ComputesAsBefore) {
  const auto x = random_tensors(2, {300, 200});
  const auto expected = x[0].flip(0).flip(0);
  EXPECT_TRUE(torch::equal(x[0], expected));
  EXPECT_TRUE(close(x[0].matmul(x[1].t()).matmul(torch::eye(300, torch::kDouble)),
                    x[0].matmul(x[1].t())));
}

TEST_F(Memory, InstallsOnce) {
  const auto* allocator = c10::GetCPUAllocator();
  reuse_memory();
  EXPECT_EQ(c10::GetCPUAllocator(), allocator);
}

TEST_F(Memory, CountsWhatLives) {
  const int64_t before = memory_use().live;
  {
    const Tensor x = torch::empty({1000, 1001});
    EXPECT_EQ(memory_use().live - before, 4 * 1000 * 1001);
    const Tensor small = torch::empty({3}, torch::kByte);
    EXPECT_EQ(memory_use().live - before, 4 * 1000 * 1001 + 3);
  }
  EXPECT_EQ(memory_use().live, before);
}

TEST_F(Memory, RemembersThePeakUntilReset) {
  reset_memory_peak();
  const int64_t before = memory_use().live;
  bytes(3 * kMiB);
  bytes(kMiB);
  EXPECT_EQ(memory_use().peak, before + 3 * kMiB);
  reset_memory_peak();
  EXPECT_EQ(memory_use().peak, before);
}

TEST_F(Memory, HandsFreedBlocksOutAgain) {
  const void* first = nullptr;
  {
    const Tensor x = bytes(5 * kMiB);
    first = x.data_ptr();
  }
  EXPECT_GE(memory_use().cached, 5 * kMiB);
  const Tensor nearly_as_large = bytes(5 * kMiB - 100);
  EXPECT_EQ(nearly_as_large.data_ptr(), first);
  EXPECT_EQ(memory_use().cached, 0);
}

TEST_F(Memory, GivesKeptBlocksBack) {
  bytes(5 * kMiB);
  release_cached_memory();
  EXPECT_EQ(memory_use().cached, 0);
}

// Sizes that no two tensors share, so that none is handed out again.
std::vector<int64_t> different_sizes() {
  std::vector<int64_t> sizes;
  for (int64_t size = kMiB; size < 64 * kMiB; size += size / 7) sizes.push_back(size);
  return sizes;
}

TEST_F(Memory, KeepsNoMoreThanLivedAtOnce) {
  reset_memory_peak();
  int64_t sum = 0;
  for (const int64_t size : different_sizes()) {
    bytes(size);
    sum += size;
    EXPECT_GE(memory_use().cached, size);
    EXPECT_LE(memory_use().cached, memory_use().peak * 9 / 8);
  }
  EXPECT_LT(memory_use().cached, sum / 2);
}

TEST_F(Memory, DropsTheLongestUnusedFirst) {
  const void* newest = nullptr;
  for (const int64_t size : different_sizes()) newest = bytes(size).data_ptr();
  EXPECT_EQ(bytes(different_sizes().back()).data_ptr(), newest);
}

TEST_F(Memory, AlignsEveryBlock) {
  for (const int64_t size : {1, 63, 64, 65, 4095, 4096, 4097, 10000, 1000000}) {
    const Tensor x = bytes(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64, 0u) << size;
    x.fill_(1);
    EXPECT_EQ(x.sum().item<int64_t>(), size);
  }
}

TEST_F(Memory, HasTensorsWithoutElements) {
  const int64_t before = memory_use().live;
  const Tensor x = torch::empty({0, 3});
  EXPECT_EQ(x.numel(), 0);
  EXPECT_EQ(memory_use().live, before);
}

TEST_F(Memory, ServesPlainPointers) {
  auto* allocator = c10::GetCPUAllocator();
  const int64_t before = memory_use().live;
  void* block = allocator->raw_allocate(10000);
  EXPECT_EQ(memory_use().live - before, 10000);
  allocator->raw_deallocate(block);
  EXPECT_EQ(memory_use().live, before);
}

TEST_F(Memory, RefusesWhatNoMachineHas) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer ends the process instead";
#endif
  bytes(5 * kMiB);
  const int64_t before = memory_use().live;
  try {
    bytes(int64_t{1} << 60);
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("no memory for a tensor of 1152921504606"),
              std::string::npos);
  }
  EXPECT_EQ(memory_use().live, before);
  EXPECT_EQ(memory_use().cached, 0) << "the cache is given up before giving up";
}

TEST_F(Memory, ServesManyThreads) {
  const int64_t before = memory_use().live;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      std::vector<Tensor> held(8);
      for (int round = 0; round < 2000; ++round) {
        Tensor& place = held[(round * 5) % 8];
        if (place.defined() && place.data_ptr<uint8_t>()[place.numel() - 1] != thread)
          ++wrong;
        place = bytes(1 + (round * 7919) % 40000);
        std::memset(place.data_ptr(), thread, place.numel());
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(memory_use().live, before);
}

TEST_F(Memory, CanBeLibTorchsOwnForAWhile) {
  const auto* const ours = c10::GetCPUAllocator();
  const int64_t before = memory_use().live;
  Tensor outlives;
  {
    const Tensor reused = bytes(kMiB);
    const ShippedAllocator shipped;
    EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator());
    outlives = bytes(kMiB);
    EXPECT_EQ(memory_use().live - before, kMiB) << "of the one made before";
  }
  EXPECT_EQ(c10::GetCPUAllocator(), ours);
  EXPECT_EQ(memory_use().live, before) << "given back to whom it came from";
  EXPECT_EQ(outlives.fill_(1).sum().item<int64_t>(), kMiB);
  outlives = bytes(kMiB);
  EXPECT_EQ(memory_use().live - before, kMiB);
}

TEST(PeakBytes, IsWhatTheWorkNeedsBesideWhatLives) {
  for (const auto device : devices()) {
    const auto options = torch::TensorOptions(device);
    const Tensor here_before = torch::empty({1 << 20}, options);
    const PeakBytes peak(device);
    EXPECT_EQ(peak.newly(), 0);
    torch::empty({1 << 19}, options);
    torch::empty({1 << 18}, options);
    EXPECT_EQ(peak.newly(), 4 << 19) << device;
  }
}

TEST(PeakBytes, RefusesOtherDevices) {
  EXPECT_EQ(refusal([] { PeakBytes(torch::Device(torch::kMeta)); }),
            "peak bytes: the device must be cpu or cuda, got meta");
}

}  // namespace
}  // namespace longspan::testing
