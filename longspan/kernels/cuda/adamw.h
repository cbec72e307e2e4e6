// The kernels of AdamW over lists of tensors, few launches for all of them. Everything
// is contiguous in device memory. They return a cudaError_t; the tables are read before
// they return.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

// A block of threads works on so many numbers of one tensor.
constexpr int64_t kOptimizerChunk = 4096;

constexpr int64_t optimizer_chunks(int64_t count) {
  return (count + kOptimizerChunk - 1) / kOptimizerChunk;
}

struct CollectedGradient {
  float* sum = nullptr;
  const uint16_t* gradient = nullptr;  // bfloat16
  int64_t count = 0;
  bool is_first = false;  // sum = gradient, else sum += gradient
};

int collect_gradients(const CollectedGradient* tensors, int count, Stream stream);

struct SquaredGradient {
  const float* gradient = nullptr;
  int64_t count = 0;
};

// *result: the sum of all squares, added up in double in an order that only the sizes
// decide. `partial` has room for optimizer_chunks() numbers of every tensor.
int sum_of_squares(const SquaredGradient* tensors, int count, double* partial,
                   double* result, Stream stream);

struct UpdatedWeight {
  float* weight = nullptr;
  const float* gradient = nullptr;
  float *first = nullptr, *second = nullptr;  // moments
  uint16_t* rounded = nullptr;  // the new weight in bfloat16; null: not wanted
  int64_t count = 0;
  float step = 0;   // learning rate over 1 - beta1^t
  float decay = 0;  // learning rate times weight decay
};

struct AdamWNumbers {
  float beta1 = 0, beta2 = 0;
  float rest1 = 0, rest2 = 0;  // 1 - beta
  float second_scale = 0;      // 1 / (1 - beta2^t)
  float epsilon = 0;
  float scale = 1;  // of the gradients
};

// The same bits as on the CPU.
int update_weights(const UpdatedWeight* tensors, int count, const AdamWNumbers& numbers,
                   Stream stream);

}  // namespace longspan::cuda
