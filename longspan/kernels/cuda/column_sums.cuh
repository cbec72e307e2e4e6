// Sums over many rows, of every column: blocks sum chunks of rows, and what they found
// is summed here, in the order of the chunks.

#pragma once

#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

constexpr int64_t kMostChunks = 4096;

template <class From, class To>
struct ColumnSums {
  const From* from = nullptr;  // [chunks, width]
  To* to = nullptr;            // [width]; null: not wanted
};

template <class From, class To>
struct ColumnSumsOfTwo {
  ColumnSums<From, To> each[2];
};

template <class From, class To>
__global__ void __launch_bounds__(kWarp* kWarp)
    sum_chunks(const __grid_constant__ ColumnSumsOfTwo<From, To> two, int64_t chunks,
               int64_t width) {
  const ColumnSums<From, To>& sums = two.each[blockIdx.y];
  if (!sums.to) return;
  __shared__ double parts[kWarp][kWarp + 1];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += kWarp)
      sum += sums.from[chunk * width + column];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Turned, so that a warp has one column.
  sum = sum_of_lanes(parts[threadIdx.x][threadIdx.y], kWarp);
  const int64_t summed = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && summed < width)
    sums.to[summed] = rounded<To>(static_cast<Inner<To>>(sum));
}

template <class From, class To>
int sum_chunks(const ColumnSums<From, To>& first, const ColumnSums<From, To>& second,
               int64_t chunks, int64_t width, Stream stream) {
  const dim3 blocks(static_cast<unsigned>(parts_of(width, kWarp)), 2);
  sum_chunks<From, To>
      <<<blocks, dim3(kWarp, kWarp), 0, stream>>>({{first, second}}, chunks, width);
  return cudaGetLastError();
}

}  // namespace
}  // namespace longspan::cuda
