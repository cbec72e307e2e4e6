// Instructions that CUDA C++ has no names for, of compute capability 8.0: copies to
// shared memory that go on beside the code, and products of small matrices by a warp.

#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace longspan::cuda {
namespace {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Begins to copy 16 bytes: `bytes` of them from `from`, the rest zeros. Both addresses
// are multiples of 16.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to),
               "l"(from), "r"(bytes)
               : "memory");
}

// Begins to copy one number of 4 or 8 bytes.
template <class Number>
__device__ __forceinline__ void copy_one(Number* to, const Number* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(shared_address(to)),
               "l"(from), "n"(sizeof(Number))
               : "memory");
}

__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until all copies of this thread that were closed have arrived.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of
// matrix l / 8 and gets numbers 2 * (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// The same of the transposed matrices.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// sums [16, 8] += left [16, 16] * right [16, 8] of the type of the tag.
__device__ __forceinline__ void add_product(__nv_bfloat16, float (&sums)[4],
                                            const uint32_t (&left)[4], uint32_t right0,
                                            uint32_t right1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0),
        "r"(right1));
}

__device__ __forceinline__ void add_product(__half, float (&sums)[4],
                                            const uint32_t (&left)[4], uint32_t right0,
                                            uint32_t right1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0),
        "r"(right1));
}

// 2^x to about 2^-22 of itself; numbers under 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace
}  // namespace longspan::cuda
