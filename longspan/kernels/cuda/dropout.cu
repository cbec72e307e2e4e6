#include "longspan/kernels/cuda/dropout.h"

#include "longspan/kernels/cuda/philox.cuh"
#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;

// What one thread works on: whole places of four words, and whole packs.
template <class Number>
constexpr int kElements = kPackOf<Number> < 4 ? 4 : kPackOf<Number>;

template <class Number>
__global__ void __launch_bounds__(kThreads)
    drop(const Number* __restrict__ x, Number* __restrict__ y, int64_t count,
         uint64_t key, uint32_t limit, Inner<Number> factor, bool aligned) {
  constexpr int kCount = kElements<Number>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = thread * kCount;
  if (first >= count) return;
  const int64_t left = count - first;
  Inner<Number> values[kCount];
  load<kCount>(x + first, left, aligned, values);
#pragma unroll
  for (int four = 0; four < kCount; four += 4) {
    const int64_t place = (first + four) / 4;
    uint32_t words[4] = {static_cast<uint32_t>(place),
                         static_cast<uint32_t>(place >> 32), 0, 0};
    philox(key, words);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      values[four + i] = words[i] < limit ? 0 : values[four + i] * factor;
  }
  store<kCount>(values, y + first, left, aligned);
}

}  // namespace

int drop_elements(const DropElements& task, Stream stream) {
  if (task.count == 0) return cudaSuccess;
  return with_number(task.type, [&](auto number) -> int {
    using Number = decltype(number);
    const int64_t blocks = parts_of(task.count, kThreads * kElements<Number>);
    drop<Number><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        static_cast<const Number*>(task.x), static_cast<Number*>(task.y), task.count,
        task.key, task.limit, static_cast<Inner<Number>>(task.factor),
        is_aligned(task.x) && is_aligned(task.y));
    return cudaGetLastError();
  });
}

}  // namespace longspan::cuda
