// The products that wgmma computes: 64 rows of A by 64 or 128 columns of B, added to
// `sums` or, where `keep` is 0, put there. A is in shared memory or in registers.
// kAlongRows: B is stored with its columns next to each other.

#pragma once

#include <type_traits>

#include "longspan/kernels/cuda/hopper_ptx.cuh"

#ifdef LONGSPAN_ON_HOPPER
namespace longspan::cuda::hopper {

#define LONGSPAN_SUMS_32                                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define LONGSPAN_SUMS_64                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define LONGSPAN_4(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define LONGSPAN_16(x, i) \
  LONGSPAN_4(x, i), LONGSPAN_4(x, i + 1), LONGSPAN_4(x, i + 2), LONGSPAN_4(x, i + 3)
#define LONGSPAN_32(x, i) LONGSPAN_16(x, i), LONGSPAN_16(x, i + 4)
#define LONGSPAN_64(x, i) LONGSPAN_32(x, i), LONGSPAN_32(x, i + 8)

#define LONGSPAN_PRODUCT_SHARED_64(type)                                               \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " LONGSPAN_SUMS_32 \
      ", %32, %33, p, 1, 1, 0, %35;\n}\n"                                              \
      : LONGSPAN_32(sums, 0)                                                           \
      : "l"(a), "l"(b), "r"(keep), "n"(kAlongRows)                                     \
      : "memory")
#define LONGSPAN_PRODUCT_REGISTERS_64(type)                                            \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " LONGSPAN_SUMS_32 \
      ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"                                \
      : LONGSPAN_32(sums, 0)                                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(kAlongRows) \
      : "memory")
template <class Number, int kAlongRows>
__device__ __forceinline__ void product(float (&sums)[8][4], uint64_t a, uint64_t b,
                                        int keep) {
  if constexpr (std::is_same_v<Number, __half>)
    LONGSPAN_PRODUCT_SHARED_64("f16");
  else
    LONGSPAN_PRODUCT_SHARED_64("bf16");
}
template <class Number, int kAlongRows>
__device__ __forceinline__ void product(float (&sums)[8][4], const uint32_t (&a)[4],
                                        uint64_t b, int keep) {
  if constexpr (std::is_same_v<Number, __half>)
    LONGSPAN_PRODUCT_REGISTERS_64("f16");
  else
    LONGSPAN_PRODUCT_REGISTERS_64("bf16");
}
#undef LONGSPAN_PRODUCT_SHARED_64
#undef LONGSPAN_PRODUCT_REGISTERS_64

#define LONGSPAN_PRODUCT_SHARED_128(type)                          \
  asm volatile(                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                 \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
      " " LONGSPAN_SUMS_64 ", %64, %65, p, 1, 1, 0, %67;\n}\n"     \
      : LONGSPAN_64(sums, 0)                                       \
      : "l"(a), "l"(b), "r"(keep), "n"(kAlongRows)                 \
      : "memory")
#define LONGSPAN_PRODUCT_REGISTERS_128(type)                                           \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                     \
      " " LONGSPAN_SUMS_64 ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"           \
      : LONGSPAN_64(sums, 0)                                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(kAlongRows) \
      : "memory")
template <class Number, int kAlongRows>
__device__ __forceinline__ void product(float (&sums)[16][4], uint64_t a, uint64_t b,
                                        int keep) {
  if constexpr (std::is_same_v<Number, __half>)
    LONGSPAN_PRODUCT_SHARED_128("f16");
  else
    LONGSPAN_PRODUCT_SHARED_128("bf16");
}
template <class Number, int kAlongRows>
__device__ __forceinline__ void product(float (&sums)[16][4], const uint32_t (&a)[4],
                                        uint64_t b, int keep) {
  if constexpr (std::is_same_v<Number, __half>)
    LONGSPAN_PRODUCT_REGISTERS_128("f16");
  else
    LONGSPAN_PRODUCT_REGISTERS_128("bf16");
}
#undef LONGSPAN_PRODUCT_SHARED_128
#undef LONGSPAN_PRODUCT_REGISTERS_128

#undef LONGSPAN_SUMS_32
#undef LONGSPAN_SUMS_64
#undef LONGSPAN_4
#undef LONGSPAN_16
#undef LONGSPAN_32
#undef LONGSPAN_64

// [64 rows of A] x [rows of B]^T, both along their rows. kRowsOfA and kRowsOfB are rows
// of a panel of 64 columns; a, b are low words.
template <class Number, int kColumns, int kRowsOfA, int kRowsOfB, int kCount>
__device__ __forceinline__ void multiply(float (&sums)[kCount][4], uint32_t a,
                                         uint32_t b) {
  product_fence();
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k)
    product<Number, 0>(sums, matrix(a + k / 4 * (kRowsOfA * 8) + k % 4 * 2),
                       matrix(b + k / 4 * (kRowsOfB * 8) + k % 4 * 2), k != 0);
  product_commit();
}
// Adds [64 x kRows in registers] x [kRows of B].
template <class Number, int kRows, int kCount>
__device__ __forceinline__ void multiply_add(float (&sums)[kCount][4],
                                             const uint32_t (&a)[kRows / 16][4],
                                             uint32_t b) {
  product_fence();
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k)
    product<Number, 1>(sums, a[k], matrix(b + k * 128), 1);
  product_commit();
}

}  // namespace longspan::cuda::hopper
#endif  // LONGSPAN_ON_HOPPER
