// Numbers as they are stored and as they compute.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "longspan/kernels/cuda/ptx.cuh"

namespace longspan::cuda {
namespace {

constexpr double kLog2E = 1.44269504088896341, kLn2 = 0.693147180559945309;

template <class Stored>
struct Computing {
  using Number = float;
};
template <>
struct Computing<double> {
  using Number = double;
};
// double for double, else float.
template <class Stored>
using NumberOf = typename Computing<Stored>::Number;

template <class Number>
struct alignas(2 * sizeof(Number)) PairOf {
  Number x, y;
};

__device__ __forceinline__ float to_number(float x) { return x; }
__device__ __forceinline__ double to_number(double x) { return x; }
__device__ __forceinline__ float to_number(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_number(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class Stored>
__device__ __forceinline__ Stored to_stored(NumberOf<Stored> x) {
  return static_cast<Stored>(x);
}
template <>
__device__ __forceinline__ __half to_stored<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 to_stored<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Two numbers of 16 bits in a word, the first in its low half.
__device__ __forceinline__ uint32_t packed(__nv_bfloat16, float x, float y) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&both);
}
__device__ __forceinline__ uint32_t packed(__half, float x, float y) {
  const __half2 both = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ __forceinline__ float exp2_of(float x) { return exp2_fast(x); }
__device__ __forceinline__ double exp2_of(double x) { return exp2(x); }
__device__ __forceinline__ float log2_of(float x) { return log2f(x); }
__device__ __forceinline__ double log2_of(double x) { return log2(x); }
__device__ __forceinline__ float fused(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ double fused(double a, double b, double c) {
  return fma(a, b, c);
}
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

template <class Number>
__device__ __forceinline__ Number infinity() {
  return static_cast<Number>(__int_as_float(0x7f800000));
}

// The sum, or the largest, of the four lanes that own parts of a row.
template <class Number>
__device__ __forceinline__ Number sum_of_row(Number x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
template <class Number>
__device__ __forceinline__ Number largest_of_row(Number x) {
  x = larger(x, __shfl_xor_sync(~0u, x, 1));
  return larger(x, __shfl_xor_sync(~0u, x, 2));
}

}  // namespace
}  // namespace longspan::cuda
