// The gradients of tiles that were cut: sums over their parts, in order.

#pragma once

#include "longspan/kernels/cuda/attention_launch.cuh"

namespace longspan::cuda {
namespace {

struct PartSums {
  const void* parts;  // [heads, parts, 64, width]
  Rows<void> to;
  Ints rows;  // row of `to` of a place, -1: empty; null: itself
  int64_t heads, places, width;
  Pieces pieces;
};

// One tile that was cut, of one head.
template <class Stored, class Out>
__global__ void __launch_bounds__(kThreads)
    sum_parts(const __grid_constant__ PartSums task) {
  using Number = NumberOf<Stored>;
  const int32_t head_number = blockIdx.x / task.pieces.cut_count;
  const Cut cut = task.pieces.cuts[blockIdx.x - head_number * task.pieces.cut_count];
  const auto heads = static_cast<int32_t>(task.heads);
  const int32_t example = head_number / heads, head = head_number % heads;
  const auto* const parts =
      static_cast<const Number*>(task.parts) +
      (static_cast<int64_t>(head_number) * task.pieces.parts + cut.first) * kTile *
          task.width;
  const HeadInts rows = head_ints(task.rows, example, head);
  Out* const to = head_of<Out>(task.to, example, head);
  for (int64_t i = threadIdx.x; i < kTile * task.width; i += kThreads) {
    const int64_t place = i / task.width, x = i - place * task.width;
    const int32_t row = row_of_place(rows, static_cast<int32_t>(task.places),
                                     cut.tile * kTile + static_cast<int32_t>(place));
    if (row < 0) continue;
    Number sum = 0;
    for (int part = 0; part < cut.count; ++part)
      sum += parts[part * kTile * task.width + i];
    to[row * task.to.row + x] = to_stored<Out>(sum);
  }
}

template <class Stored, class Out>
int launch_sum_parts(const PartSums& task, int64_t examples, Stream stream) {
  if (!task.to.data || task.width == 0) return cudaSuccess;
  return launch_blocks<sum_parts<Stored, Out>>(
      examples * task.heads * task.pieces.cut_count, 1, 0, stream, task);
}

}  // namespace
}  // namespace longspan::cuda
