#include "longspan/kernels/cuda/lse_merge.h"

#include <cmath>

#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

// The shares of the parts in one row.
template <class Number, class Task>
class Shares {
 public:
  __device__ Shares(const Task& task, const Row& row) : task_(task), row_(row) {
    constexpr Number kNothing = -INFINITY;
    Number largest = kNothing;
#pragma unroll 4
    for (int part = 0; part < task.part_count; ++part) {
      const Number lse = lse_of(part);
      largest = lse > largest ? lse : largest;
    }
    base_ = largest > kNothing ? largest : 0;
    Number total = 0;
#pragma unroll 4
    for (int part = 0; part < task.part_count; ++part) total += weight_of(part);
    is_empty_ = total == 0;
    divisor_ = is_empty_ ? 1 : total;
  }

  __device__ Number of(int part) const { return weight_of(part) / divisor_; }
  __device__ Number lse() const {
    return is_empty_ ? -INFINITY : base_ + log(divisor_);
  }

 private:
  __device__ Number lse_of(int part) const {
    return *row_.of<Number>(task_.parts[part].lse);
  }
  __device__ Number weight_of(int part) const { return exp(lse_of(part) - base_); }

  const Task& task_;
  const Row& row_;
  Number base_, divisor_;
  bool is_empty_;
};

template <class Number>
__global__ void __launch_bounds__(kRowThreads)
    merge_rows(const __grid_constant__ Merge task,
               const __grid_constant__ RowThreads threads, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  const Row row(threads);
  if (row.index >= threads.count) return;
  const Shares<In, Merge> shares(task, row);
  if (row.lane == 0) static_cast<In*>(task.lse)[row.index] = shares.lse();
  for (int64_t column = row.lane * kCount; column < task.width;
       column += threads.lanes * kCount) {
    const int64_t left = task.width - column;
    Values<Number> sums = {};
#pragma unroll 4
    for (int part = 0; part < task.part_count; ++part) {
      const auto x = load(row.of<Number>(task.parts[part].out) + column, left, aligned);
      const In share = shares.of(part);
      // Without weight no value counts, not even one that is not finite.
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (share != 0) sums.at[i] += share * x.at[i];
    }
    store(sums, static_cast<Number*>(task.out) + row.index * task.width + column, left,
          aligned);
  }
}

// With w the shares and c the slopes' dot products with the rows of the parts, the
// slope of a part's out is w times that of out, and that of its lse
// w (c - sum of all w c + the slope of lse).
template <class Number>
__global__ void __launch_bounds__(kRowThreads)
    merge_rows_gradient(const __grid_constant__ MergeGradient task,
                        const __grid_constant__ RowThreads threads, bool aligned,
                        bool with_lse) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  const Row row(threads);
  if (row.index >= threads.count) return;
  const Shares<In, MergeGradient> shares(task, row);
  In average = 0;
  for (int part = 0; part < task.part_count; ++part) {
    const In share = shares.of(part);
    auto* const to = static_cast<Number*>(task.slopes[part].out);
    In product = 0;
    for (int64_t column = row.lane * kCount; column < task.width;
         column += threads.lanes * kCount) {
      const int64_t left = task.width - column;
      auto slope = load(row.of<Number>(task.out_slope) + column, left, aligned);
      if (with_lse && share != 0) {
        const auto x =
            load(row.of<Number>(task.parts[part].out) + column, left, aligned);
#pragma unroll
        for (int i = 0; i < kCount; ++i) product += slope.at[i] * x.at[i];
      }
      if (!to) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        slope.at[i] = share == 0 ? 0 : share * slope.at[i];
      store(slope, to + row.index * task.width + column, left, aligned);
    }
    if (!with_lse) continue;
    product = sum_of_lanes(product, threads.lanes);
    average += share * product;
    auto* const lse = static_cast<In*>(task.slopes[part].lse);
    if (lse && row.lane == 0) lse[row.index] = product;  // for the loop below
  }
  if (!with_lse || row.lane > 0) return;
  const In lse_slope = *row.of<In>(task.lse_slope);
  for (int part = 0; part < task.part_count; ++part) {
    auto* const lse = static_cast<In*>(task.slopes[part].lse);
    if (!lse) continue;
    const In share = shares.of(part);
    lse[row.index] = share == 0 ? 0 : share * (lse[row.index] - average + lse_slope);
  }
}

template <class Number, class Task>
bool are_parts_aligned(const Task& task) {
  bool aligned = true;
  for (int part = 0; part < task.part_count; ++part)
    aligned = aligned && are_aligned<Number>(task.parts[part].out);
  return aligned;
}

}  // namespace

int merge(const Merge& task, Stream stream) {
  return with_number(task.type, [&](auto number) -> int {
    using Number = decltype(number);
    const RowThreads threads(task.examples, task.heads, task.rows,
                             parts_of(task.width, kPackOf<Number>));
    if (threads.count == 0) return cudaSuccess;
    const bool aligned = are_parts_aligned<Number>(task) &&
                         are_aligned<Number>(threads.count, task.width, {task.out});
    merge_rows<Number>
        <<<threads.blocks(), kRowThreads, 0, stream>>>(task, threads, aligned);
    return cudaGetLastError();
  });
}

int merge_gradient(const MergeGradient& task, Stream stream) {
  return with_number(task.type, [&](auto number) -> int {
    using Number = decltype(number);
    const RowThreads threads(task.examples, task.heads, task.rows,
                             parts_of(task.width, kPackOf<Number>));
    if (threads.count == 0) return cudaSuccess;
    bool aligned =
        are_parts_aligned<Number>(task) && are_aligned<Number>(task.out_slope);
    bool with_lse = false;
    for (int part = 0; part < task.part_count; ++part) {
      aligned = aligned &&
                are_aligned<Number>(threads.count, task.width, {task.slopes[part].out});
      with_lse = with_lse || task.slopes[part].lse;
    }
    merge_rows_gradient<Number><<<threads.blocks(), kRowThreads, 0, stream>>>(
        task, threads, aligned, with_lse);
    return cudaGetLastError();
  });
}

}  // namespace longspan::cuda
