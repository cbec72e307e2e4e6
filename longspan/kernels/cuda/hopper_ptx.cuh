// The instructions of Hopper that its kernels use, under names that can be read.

#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LONGSPAN_ON_HOPPER 1
#endif

#ifdef LONGSPAN_ON_HOPPER
namespace longspan::cuda::hopper {

constexpr uint32_t kAllLanes = ~0u;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- Barriers in shared memory

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the barrier wait for so many bytes of bulk copies.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred P;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P, [%1], %2;\n"
      "selp.u32 %0, 1, 0, P;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
#ifdef LONGSPAN_GUARD_BARRIERS  // a lost barrier stops the kernel
  for (int i = 0; i < (1 << 22); ++i)
    if (barrier_try(barrier, parity)) return;
  asm volatile("trap;");
#else
  asm volatile(
      "{\n.reg .pred P;\nWAIT%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
      "@P bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Between plain accesses to shared memory and those of wgmma and bulk copies.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// True in one lane of a warp whose lanes are together; keeps no register alive.
__device__ __forceinline__ bool is_elected() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nselp.u32 %0, 1, 0, P;\n}\n"
      : "=r"(elected));
  return elected;
}
// A warp's arrival, for all that its lanes have read and written: one arrives after all
// have met. compute-sanitizer's racecheck does not follow the others through that; in a
// build with LONGSPAN_ALL_LANES_ARRIVE, for it alone, each arrives by itself.
#ifdef LONGSPAN_ALL_LANES_ARRIVE
constexpr int kArrivalsOfWarp = 32;
__device__ __forceinline__ void arrive_as_warp(uint32_t barrier) {
  barrier_arrive(barrier);
}
#else
constexpr int kArrivalsOfWarp = 1;
__device__ __forceinline__ void arrive_as_warp(uint32_t barrier) {
  __syncwarp();
  if (is_elected()) barrier_arrive(barrier);
}
#endif
// The thread's index read anew, so that nothing made from it stays in registers.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// ---- Copies to shared memory

// 16 bytes from any row; none are read, and zeros written, where `bytes` is 0.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to),
               "l"(from), "r"(bytes)
               : "memory");
}
// One arrival, of those it was initialised with, when the thread's copies are done.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier)
               : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box of a tensor map over (column, row, head, example); zeros beyond its ends.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map,
                                         int column, int row, int head, int example,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(example), "r"(barrier)
      : "memory");
}
// Bytes and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, int bytes,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
      "%2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// ---- Plain accesses to shared memory, by address: a pointer that has been through
// integers would be read as if it could point anywhere.

__device__ __forceinline__ int load_int(uint32_t address) {
  int value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ int2 load_int2(uint32_t address) {
  int2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ uint64_t load_word(uint32_t address) {
  uint64_t value;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ float2 load_float2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ uint4 load16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ void store_int(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// ---- Numbers

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class Number>
__device__ __forceinline__ uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class Number>
__device__ __forceinline__ float2 unpack(uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 unpack<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// ---- Around wgmma

__device__ __forceinline__ void product_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `kPending` committed groups are running.
template <int kPending>
__device__ __forceinline__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accumulators across a wait; no instruction.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+f"(x[i][j])::"memory");
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A matrix in shared memory as wgmma is told of it, in the 128-byte swizzle. The high
// word is constant (8 rows of 128 bytes); the low one is the address / 16 and, for
// matrices read along their rows that are wider than 64 columns, the distance of two
// panels of 64 columns. To go on, add to the low word: to build it anew is slow.
__device__ __forceinline__ uint32_t matrix_at(uint32_t address, uint32_t panel = 16) {
  return (address >> 4) | ((panel >> 4) << 16);
}
__device__ __forceinline__ uint64_t matrix(uint32_t low) {
  return (static_cast<uint64_t>(0x40000040u) << 32) | low;
}

}  // namespace longspan::cuda::hopper
#endif  // LONGSPAN_ON_HOPPER
