// Tensors as the CUDA kernels of attention take them; not public.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <torch/types.h>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

// Of [B|1, H|1, n, c] whose last axis is dense, for `heads` heads.
template <class Number>
Rows<Number> rows_of(const torch::Tensor& x, int64_t heads) {
  if (!x.defined()) return {};
  return {.data = static_cast<Number*>(x.data_ptr()),
          .example = x.size(0) == 1 ? 0 : x.stride(0),
          .head = x.size(1) == 1 ? 0 : x.stride(1),
          .row = x.stride(2),
          .group = static_cast<int32_t>(
              std::max<int64_t>(1, heads / std::max<int64_t>(1, x.size(1))))};
}

// Of [B, H, n]: rows of one number.
template <class Number>
Rows<Number> row_numbers(const torch::Tensor& x) {
  return x.defined() ? rows_of<Number>(x.unsqueeze(3), x.size(1)) : Rows<Number>{};
}

// x with a dense last axis, its data and rows at multiples of 16 bytes: itself, or a
// copy.
torch::Tensor aligned(const torch::Tensor& x);

// x [.., n, c] whose rows lie apart, but none so far from the next that kernels could
// not count the bytes: itself, or a copy.
torch::Tensor spaced(const torch::Tensor& x);

// What integers must be within; those beyond an end are refused, or cut to it.
struct Limits {
  int64_t least = std::numeric_limits<int32_t>::min();
  int64_t most = std::numeric_limits<int32_t>::max();
  bool cut_least = false, cut_most = false;
};

constexpr int64_t kFarthestPosition = int64_t{1} << 29;
constexpr Limits kPositions{.least = -kFarthestPosition, .most = kFarthestPosition};
constexpr Limits kEnds{.cut_least = true, .cut_most = true};
constexpr Limits rows_within(int64_t count) {
  return {.least = -1, .most = count - 1, .cut_least = true};
}

// [n] or [B|1, H|1, n] as [B|1, H|1, n, 1], [B|1, H|1, N, M] as it is; int32, on
// `device`. Those that lie on a device are not waited for: what is refused there is
// found later, as LibTorch does with bad indices.
torch::Tensor int32_on(const torch::Device& device, const torch::Tensor& given,
                       const char* name, const Limits& limits);

// Sums over places of the numbers of rows: places [B, H, S, c] by rows [B|1, H|1, S]
// become [B, H, count, c], in a fixed order. Undefined rows: places are rows. `once`:
// no row has two places.
torch::Tensor sum_of_places(const torch::Tensor& places, const torch::Tensor& rows,
                            bool once, int64_t count);

// The gradient of k or v `given` [B|1, Hk, M, c] from that of every head of q by place.
torch::Tensor of_given(const torch::Tensor& places, const torch::Tensor& rows,
                       bool once, const torch::Tensor& given);

}  // namespace longspan::cuda
