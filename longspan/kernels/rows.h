// What the kernels that go over rows share.

#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include "longspan/base/build.h"

namespace longspan {

// Rows that one thread works on one after the other, adding up what is summed over
// rows. The cuts depend on the problem only, so that the number of threads cannot
// change a bit.
inline constexpr int64_t kSliceRows = 64;

inline int64_t parts_of(int64_t count, int64_t part) {
  return (count + part - 1) / part;
}

inline int64_t slices_of(int64_t rows) { return parts_of(rows, kSliceRows); }

// work(slice, first row, number of rows) for every slice.
template <class Work>
void each_slice(int64_t rows, int64_t width, const Work& work) {
  constexpr int64_t kWorthAThread = 1 << 14;  // numbers
  at::parallel_for(0, slices_of(rows),
                   std::max<int64_t>(1, kWorthAThread / (kSliceRows * width)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t slice = begin; slice < end; ++slice) {
                       const int64_t first = slice * kSliceRows;
                       work(slice, first, std::min(kSliceRows, rows - first));
                     }
                   });
}

// The sum of `partial` [slices, width], in double, over slices, in their order:
// [width].
inline torch::Tensor sum_of_slices(const torch::Tensor& partial) {
  const int64_t slices = partial.size(0), width = partial.size(1);
  torch::Tensor result = torch::zeros({width}, partial.options());
  const double* from = partial.data_ptr<double>();
  double* to = result.data_ptr<double>();
  for (int64_t slice = 0; slice < slices; ++slice)
    for (int64_t i = 0; i < width; ++i) to[i] += from[slice * width + i];
  return result;
}

// Whether this build has fused kernels for where x is.
inline bool has_kernels_for(const torch::Tensor& x) {
  return x.is_cpu() || (kHasCuda && x.is_cuda());
}

// Null where the tensor is undefined.
template <class Number>
Number* pointer(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<Number>() : nullptr;
}

// What bfloat16 and half are computed in.
inline torch::Dtype inner_dtype(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

// Custom functions of LibTorch take no undefined tensors: one that stands in for them,
// and what it stands for.
inline torch::Tensor or_none(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor : torch::empty({0});
}
inline torch::Tensor unless_none(const torch::Tensor& tensor) {
  return tensor.dim() == 1 && tensor.numel() == 0 ? torch::Tensor() : tensor;
}

// `tensor` for the kernels; undefined where it is none.
inline torch::Tensor inner(const torch::Tensor& tensor, torch::Dtype dtype) {
  const torch::Tensor some = unless_none(tensor);
  return some.defined() ? some.to(dtype).contiguous() : some;
}

}  // namespace longspan
