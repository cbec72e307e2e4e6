// What the kernels that go over the heads of [B, H, N, d] tensors share.

#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include "longspan/kernels/rows.h"

namespace longspan {

// x in `dtype`, its last axis of stride 1: x itself where that holds.
inline torch::Tensor unit_stride(const torch::Tensor& x, torch::Dtype dtype) {
  const torch::Tensor y = x.to(dtype);
  return y.size(-1) <= 1 || y.stride(-1) == 1 ? y : y.contiguous();
}

// One place of a [B, H, ..] tensor: of a head, in it a row and, if there is one, a
// column. Null where the tensor is undefined.
template <class Number>
Number* head_of(const torch::Tensor& x, int64_t example, int64_t head, int64_t row = 0,
                int64_t column = 0) {
  if (!x.defined()) return nullptr;
  return x.data_ptr<Number>() + example * x.stride(0) + head * x.stride(1) +
         row * x.stride(2) + column;
}

// So large that the first of it has left the caches when the last is written: writing
// past them costs its reader nothing.
inline bool is_beyond_caches(const torch::Tensor& x) {
  constexpr int64_t kBytes = 8 << 20;
  return x.numel() * x.element_size() >= kBytes;
}

// work(example, head, piece) for each of `pieces` pieces of every head, in parallel. A
// piece is about `numbers` numbers to go through.
template <class Work>
void each_piece(int64_t examples, int64_t heads, int64_t pieces, int64_t numbers,
                const Work& work) {
  constexpr int64_t kWorthAThread = 1 << 14;  // numbers
  at::parallel_for(0, examples * heads * pieces,
                   std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, numbers)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                       work(i / pieces / heads, i / pieces % heads, i % pieces);
                   });
}

// work(example, head, first row, number of rows) for the rows of every head of `like`,
// [B, H, ..], kSliceRows at a time, in parallel. A row is about `width` numbers.
template <class Work>
void each_slice_of_heads(const torch::Tensor& like, int64_t rows, int64_t width,
                         const Work& work) {
  each_piece(like.size(0), like.size(1), slices_of(rows), kSliceRows * width,
             [&](int64_t example, int64_t head, int64_t slice) {
               const int64_t first = slice * kSliceRows;
               work(example, head, first, std::min(kSliceRows, rows - first));
             });
}

}  // namespace longspan
