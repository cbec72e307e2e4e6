// Sums that are the same bits whatever the number of threads, as those of LibTorch are
// not. For losses, and for gradients of what is broadcast.

#pragma once

#include <torch/types.h>

namespace longspan {

// The sum of all elements, accumulated in double. x: float, double, bfloat16 or half.
// Returns a tensor without axes, double for double and float for the rest.
torch::Tensor total(const torch::Tensor& x);

// The mean of all elements, or of those where `keep` is true: bool, broadcast to x. 0,
// with gradient 0, where there is none. What is not kept may be anything, also NaN.
torch::Tensor average(const torch::Tensor& x, const torch::Tensor& keep = {});

// x summed to `shape`, that can be broadcast to the shape of x: the gradient of
// broadcasting. x: float, double, bfloat16 or half; returns its type. Differentiable.
// Inside namespace longspan name it in full, or the compiler finds LibTorch's as well.
torch::Tensor sum_to(const torch::Tensor& x, at::IntArrayRef shape);

// x broadcast to `shape` without a copy, as by expand(), with sum_to() for a gradient.
torch::Tensor spread(const torch::Tensor& x, at::IntArrayRef shape);

}  // namespace longspan
