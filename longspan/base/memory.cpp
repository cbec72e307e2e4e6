#include "longspan/base/memory.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "longspan/base/build.h"
#include "longspan/base/cuda/memory.h"
#include "longspan/base/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, size)
#define ASAN_UNPOISON_MEMORY_REGION(from, size)
#endif

namespace longspan {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmall = 4096;  // below, malloc is quicker than a list with a lock
constexpr size_t kLargest = size_t{1} << 62;
constexpr uint8_t kPriority = 100;  // of allocators, higher than that of LibTorch's own

// Stands before every block.
struct alignas(kAlignment) Header {
  size_t asked = 0;
  size_t capacity = 0;
  // While the block is kept: its neighbours among blocks of its size and among all.
  Header* newer_of_size = nullptr;
  Header* older_of_size = nullptr;
  Header* newer = nullptr;
  Header* older = nullptr;
};
static_assert(sizeof(Header) == kAlignment);

void* block_of(Header* header) { return header + 1; }
Header* header_of(void* block) { return static_cast<Header*>(block) - 1; }

// Kept blocks, newest first, linked through the given two members.
template <Header* Header::*Newer, Header* Header::*Older>
class List {
 public:
  Header* newest() const { return newest_; }
  Header* oldest() const { return oldest_; }

  void push(Header* header) {
    header->*Newer = nullptr;
    header->*Older = newest_;
    (newest_ ? newest_->*Newer : oldest_) = header;
    newest_ = header;
  }

  void remove(Header* header) {
    (header->*Newer ? header->*Newer->*Older : newest_) = header->*Older;
    (header->*Older ? header->*Older->*Newer : oldest_) = header->*Newer;
  }

 private:
  Header* newest_ = nullptr;
  Header* oldest_ = nullptr;
};

// `bytes` rounded up to a multiple of an eighth of its power of two.
size_t rounded(size_t bytes) {
  const size_t step = bytes < kSmall ? kAlignment : std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// A number for each size that rounded() gives from kSmall on.
size_t size_class(size_t capacity) {
  const size_t power = std::bit_width(capacity) - 1;
  return power * 8 + ((capacity >> (power - 3)) & 7);
}

// Bytes in use, and the most at once.
class Gauge {
 public:
  int64_t now() const { return now_; }
  int64_t most() const { return most_; }
  void reset_most() { most_ = now_.load(); }

  void add(size_t bytes) {
    const int64_t current = now_ += static_cast<int64_t>(bytes);
    int64_t before = most_;
    while (before < current && !most_.compare_exchange_weak(before, current)) {
    }
  }

  void subtract(size_t bytes) { now_ -= static_cast<int64_t>(bytes); }

 private:
  std::atomic<int64_t> now_ = 0;
  std::atomic<int64_t> most_ = 0;
};

class Memory {
 public:
  void* take(size_t bytes) {
    Header* header = nullptr;
    if (bytes <= kLargest) {
      const size_t capacity = rounded(bytes);
      if (capacity >= kSmall) header = take_kept(capacity);
      if (!header) header = take_new(capacity);
    }
    TORCH_CHECK(header, "no memory for a tensor of ", bytes,
                " bytes on the CPU beside the ", asked_.now(), " bytes in use");
    header->asked = bytes;
    asked_.add(bytes);
    rounded_.add(header->capacity);
    auto* const block = static_cast<std::byte*>(block_of(header));
    ASAN_POISON_MEMORY_REGION(block + bytes, header->capacity - bytes);
    return block;
  }

  void give(void* block) {
    Header* header = header_of(block);
    ASAN_UNPOISON_MEMORY_REGION(block, header->capacity);
    asked_.subtract(header->asked);
    rounded_.subtract(header->capacity);
    if (header->capacity < kSmall)
      std::free(header);
    else
      keep(header);
  }

  MemoryUse use() {
    std::lock_guard lock(mutex_);
    return {.live = asked_.now(),
            .peak = asked_.most(),
            .cached = static_cast<int64_t>(kept_)};
  }

  void reset_peak() { asked_.reset_most(); }

  void release() {
    rounded_.reset_most();
    shrink(0);
  }

 private:
  using BySize = List<&Header::newer_of_size, &Header::older_of_size>;
  using ByAge = List<&Header::newer, &Header::older>;

  Header* take_kept(size_t capacity) {
    std::lock_guard lock(mutex_);
    Header* header = by_size_[size_class(capacity)].newest();
    if (header) forget(header);
    return header;
  }

  Header* take_new(size_t capacity) {
    void* fresh = std::aligned_alloc(kAlignment, sizeof(Header) + capacity);
    if (!fresh) {
      release();
      fresh = std::aligned_alloc(kAlignment, sizeof(Header) + capacity);
    }
    if (!fresh) return nullptr;
    return new (fresh) Header{.capacity = capacity};
  }

  void keep(Header* header) {
    ASAN_POISON_MEMORY_REGION(block_of(header), header->capacity);
    {
      std::lock_guard lock(mutex_);
      by_size_[size_class(header->capacity)].push(header);
      by_age_.push(header);
      kept_ += header->capacity;
    }
    shrink(static_cast<size_t>(rounded_.most()));
  }

  // Unlinks a kept block. With the mutex held.
  void forget(Header* header) {
    ASAN_UNPOISON_MEMORY_REGION(block_of(header), header->capacity);
    by_size_[size_class(header->capacity)].remove(header);
    by_age_.remove(header);
    kept_ -= header->capacity;
  }

  // Frees the longest kept until `limit` bytes are left.
  void shrink(size_t limit) {
    Header* freed = nullptr;
    {
      std::lock_guard lock(mutex_);
      while (kept_ > limit) {
        Header* header = by_age_.oldest();
        forget(header);
        header->older = freed;
        freed = header;
      }
    }
    while (freed) std::free(std::exchange(freed, freed->older));  // slow, so unlocked
  }

  Gauge asked_, rounded_;
  std::mutex mutex_;  // for what follows
  std::array<BySize, 64 * 8> by_size_;
  ByAge by_age_;
  size_t kept_ = 0;
};

// Never destroyed: tensors in static variables die later than any order could promise.
Memory& memory() {
  static Memory& it = *std::make_unique<Memory>().release();
  return it;
}

void give_back(void* block) {
  if (block) memory().give(block);
}

// No `override`: LibTorch 1.13 has only the first allocate(), 2 only the second, and
// copy_data().
class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) const { return take(bytes); }
  c10::DataPtr allocate(size_t bytes) { return take(bytes); }
  c10::DeleterFnPtr raw_deleter() const { return give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
  }

 private:
  static c10::DataPtr take(size_t bytes) {
    void* block = bytes ? memory().take(bytes) : nullptr;
    return {block, block, give_back, torch::Device(torch::kCPU)};
  }
};

}  // namespace

void reuse_memory() {
  [[maybe_unused]] static const bool installed = [] {
    static CpuAllocator allocator;
    c10::SetCPUAllocator(&allocator, kPriority);
    return true;
  }();
}

MemoryUse memory_use() { return memory().use(); }

void reset_memory_peak() { memory().reset_peak(); }

void release_cached_memory() { memory().release(); }

ShippedAllocator::ShippedAllocator() : before_(c10::GetCPUAllocator()) {
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), kPriority);
}

ShippedAllocator::~ShippedAllocator() { c10::SetCPUAllocator(before_, kPriority); }

PeakBytes::PeakBytes(torch::Device device) : device_(device) {
  if (device_.is_cuda()) {
    if constexpr (kHasCuda) {
      before_ = cuda::start_peak(device_);
      return;
    }
    fail("peak bytes: this build has no CUDA; configure with -DLONGSPAN_CUDA=ON or ",
         "measure on the CPU");
  }
  require(device_.is_cpu(), "peak bytes: the device must be cpu or cuda, got ",
          device_.str());
  reuse_memory();
  reset_memory_peak();
  before_ = memory_use().live;
}

int64_t PeakBytes::newly() const {
  if constexpr (kHasCuda)
    if (device_.is_cuda()) return cuda::peak(device_) - before_;
  return memory_use().peak - before_;
}

}  // namespace longspan
