// Memory of tensors on the CPU: kept for reuse, and counted.
//
// LibTorch asks the system for every large tensor and gives it back when the tensor
// dies, so that each one is paid for with a page fault every 4 KiB: half the time of
// long sequences. Here freed blocks are kept and handed out again.

#pragma once

#include <cstdint>

#include <torch/types.h>

namespace longspan {

// Makes LibTorch take the memory of tensors on the CPU from here, from now on. Any call
// after the first does nothing. Tensors that already live are not counted.
//
// Blocks of 4 KiB and more are rounded up to an eighth of a power of two and kept when
// freed; of those kept, the longest unused go back to the system as soon as they are
// more bytes than lived at once since release_cached_memory(). Every block starts at a
// multiple of 64.
void reuse_memory();

// Bytes on the CPU since reuse_memory().
struct MemoryUse {
  int64_t live = 0;    // of tensors, as asked for
  int64_t peak = 0;    // the most that lived at once since reset_memory_peak()
  int64_t cached = 0;  // freed and kept, as rounded
};

MemoryUse memory_use();

// Lets the peak start again from what lives now.
void reset_memory_peak();

// Gives what is kept back to the system.
void release_cached_memory();

// Lets LibTorch take new memory as it does by itself while it lives, uncounted: for
// comparisons. Not for two threads at once.
class ShippedAllocator {
 public:
  ShippedAllocator();
  ~ShippedAllocator();
  ShippedAllocator(const ShippedAllocator&) = delete;
  ShippedAllocator& operator=(const ShippedAllocator&) = delete;

 private:
  c10::Allocator* before_;
};

// How many bytes a piece of work needs on one device: the peak from here on. One at a
// time per device, because it resets the peak. On the CPU it calls reuse_memory().
class PeakBytes {
 public:
  explicit PeakBytes(torch::Device device);

  // The most bytes that lived at once since construction, less those that lived then.
  int64_t newly() const;

  // The same with those that lived then.
  int64_t total() const { return before_ + newly(); }

 private:
  torch::Device device_;
  int64_t before_ = 0;
};

}  // namespace longspan
