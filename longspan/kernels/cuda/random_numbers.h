// Random words as tensors hold them; see ../random_numbers.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

constexpr int kMostCounterAxes = 8;

// Counters of one shape after broadcasting, each word in an int64.
struct PhiloxCounters {
  const int64_t* counters[4] = {};
  int64_t strides[4][kMostCounterAxes] = {};
  int64_t sizes[kMostCounterAxes] = {};
  int32_t axes = 0;
  int64_t count = 0;  // places, the product of the sizes
};

// Both launch a kernel on `stream` and return a cudaError_t.

// to: [count, 4].
int philox_words(uint64_t key, const PhiloxCounters& places, int64_t* to,
                 Stream stream);

// The first `count` words of `key`.
int random_words(uint64_t key, int64_t* to, int64_t count, Stream stream);

}  // namespace longspan::cuda
