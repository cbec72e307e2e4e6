// Dropout of elements; see ../dropout.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

// Elements whose word of the key is below `limit` become 0.
struct DropElements {
  Type type = Type::kFloat;
  const void* x = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  uint64_t key = 0;
  uint32_t limit = 0;
  double factor = 1;  // of the elements that stay
};

// Launches a kernel on `stream` and returns a cudaError_t.
int drop_elements(const DropElements& task, Stream stream);

}  // namespace longspan::cuda
