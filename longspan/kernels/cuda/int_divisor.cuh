// Division by a number that is only known when a kernel runs.

#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace longspan::cuda {

// Divides numbers of 31 bits that are not negative; much faster than the operator.
struct IntDivisor {
  uint64_t factor;  // no initialiser: it may lie in shared memory

  static __host__ __device__ IntDivisor of(int64_t divisor) {
    return {~uint64_t{0} / static_cast<uint64_t>(divisor)};
  }
  __device__ __forceinline__ int operator()(int number) const {
    const uint64_t more = static_cast<uint32_t>(number) + 1u;
    const uint64_t low = more * static_cast<uint32_t>(factor);
    return static_cast<int>((more * (factor >> 32) + (low >> 32)) >> 32);
  }
};

}  // namespace longspan::cuda
