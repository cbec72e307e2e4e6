#include "longspan/kernels/total.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kSlice = 4096;  // elements; never chosen by the number of threads

template <class Number>
double sum_of_slice(const Number* x, int64_t count) {
  constexpr int64_t kChains = 8;  // sums that do not wait for each other
  double sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= count; i += kChains)
    for (int64_t chain = 0; chain < kChains; ++chain)
      sums[chain] += static_cast<double>(x[i + chain]);
  for (; i < count; ++i) sums[i % kChains] += static_cast<double>(x[i]);
  return std::accumulate(sums, sums + kChains, 0.0);
}

template <class Number>
double sum(const Number* x, int64_t count) {
  std::vector<double> slices((count + kSlice - 1) / kSlice);
  at::parallel_for(
      0, static_cast<int64_t>(slices.size()), 4, [&](int64_t begin, int64_t end) {
        for (int64_t slice = begin; slice < end; ++slice) {
          const int64_t first = slice * kSlice;
          slices[slice] = sum_of_slice(x + first, std::min(kSlice, count - first));
        }
      });
  return std::accumulate(slices.begin(), slices.end(), 0.0);
}

torch::Dtype result_dtype(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

class TotalFunction : public torch::autograd::Function<TotalFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->saved_data["sizes"] = x.sizes();
    context->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    const Tensor dense = x.contiguous();
    double result = 0;
    AT_DISPATCH_FLOATING_TYPES_AND2(
        torch::kHalf, torch::kBFloat16, x.scalar_type(), "total",
        [&] { result = sum(dense.data_ptr<scalar_t>(), dense.numel()); });
    return torch::full({}, result, x.options().dtype(result_dtype(x)));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto dtype = static_cast<torch::Dtype>(context->saved_data["dtype"].toInt());
    return {spread(grads[0].to(dtype), context->saved_data["sizes"].toIntVector())};
  }
};

// The sum over `axes`, not none of them, which stay with size 1, in the type of
// total(). The way LibTorch shares a sum out decides in which order it adds; inside a
// parallel loop it does not share out. So: a loop over pieces that the shape of x
// chooses, at least two of them where LibTorch would share out.
Tensor sum_over(const Tensor& x, const std::vector<int64_t>& axes) {
  constexpr int64_t kPiece = at::internal::GRAIN_SIZE / 2;  // elements
  constexpr int64_t kMostPieces = 16;
  const auto sizes = x.sizes();
  const int64_t axis = std::ranges::max_element(sizes) - sizes.begin();
  const int64_t size = x.size(axis), most = std::min(kMostPieces, size);
  const int64_t pieces = std::min((x.numel() + kPiece - 1) / kPiece, most);
  std::vector<Tensor> sums(pieces);
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t from = size * piece / pieces, to = size * (piece + 1) / pieces;
      sums[piece] =
          at::sum(x.slice(axis, from, to), axes, /*keepdim=*/true, result_dtype(x));
    }
  });
  if (std::ranges::find(axes, axis) == axes.end()) return torch::cat(sums, axis);
  for (int64_t piece = 1; piece < pieces; ++piece) sums[0].add_(sums[piece]);
  return sums[0];
}

class SumToFunction : public torch::autograd::Function<SumToFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        at::IntArrayRef shape) {
    context->saved_data["sizes"] = x.sizes();
    if (x.numel() == 0) return torch::zeros(shape, x.options());
    const int64_t leading = x.dim() - static_cast<int64_t>(shape.size());
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < x.dim(); ++axis)
      if (axis < leading || shape[axis - leading] != x.size(axis)) axes.push_back(axis);
    return sum_over(x, axes).to(x.scalar_type()).view(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {spread(grads[0], context->saved_data["sizes"].toIntVector()), Tensor()};
  }
};

class SpreadFunction : public torch::autograd::Function<SpreadFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        at::IntArrayRef shape) {
    context->saved_data["sizes"] = x.sizes();
    return x.expand(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {longspan::sum_to(grads[0], context->saved_data["sizes"].toIntVector()),
            Tensor()};
  }
};

bool is_one_number(at::IntArrayRef shape) {
  return std::ranges::all_of(shape, [](int64_t size) { return size == 1; });
}

}  // namespace

Tensor total(const Tensor& x) {
  require(x.is_floating_point(), "total: x must be of a floating type, got ",
          x.scalar_type());
  if (!x.is_cpu()) return x.sum(torch::kDouble).to(result_dtype(x));
  return TotalFunction::apply(x);
}

Tensor average(const Tensor& x, const Tensor& keep) {
  if (!keep.defined()) return total(x) / std::max<int64_t>(x.numel(), 1);
  require(keep.scalar_type() == torch::kBool, "average: keep must be bool, got ",
          keep.scalar_type());
  require(at::is_expandable_to(keep.sizes(), x.sizes()), "average: keep must be ",
          shape(x), ", the shape of x, or broadcast to it, got ", shape(keep));
  const Tensor count = keep.expand(x.sizes()).sum().clamp_min(1);
  return total(x.masked_fill(keep.logical_not(), 0)) / count;
}

Tensor sum_to(const Tensor& x, at::IntArrayRef shape) {
  require(x.is_floating_point(), "sum to: x must be of a floating type, got ",
          x.scalar_type());
  require(at::is_expandable_to(shape, x.sizes()), "sum to: the shape must be ",
          longspan::shape(x), ", that of x, or broadcast to it, got ", shape);
  if (x.sizes() == shape) return x;
  if (!x.is_cpu()) return at::sum_to(x, shape);
  if (is_one_number(shape)) return total(x).to(x.scalar_type()).view(shape);
  return SumToFunction::apply(x, shape);
}

Tensor spread(const Tensor& x, at::IntArrayRef shape) {
  require(at::is_expandable_to(x.sizes(), shape), "spread: x must be ", shape,
          " or broadcast to it, got ", longspan::shape(x));
  return x.sizes() == shape ? x : SpreadFunction::apply(x, shape);
}

}  // namespace longspan
