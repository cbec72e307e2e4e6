#pragma once

#include <torch/types.h>

namespace longspan {

// Every row of the last axis less its mean, over its standard deviation, times weight,
// plus bias. Ba et al. 2016, arXiv:1607.06450.
//
// x: [..., E], float, double, bfloat16 or half, any strides; weight and bias: [E] in
// the type of x, or float where x is bfloat16 or half, or undefined. Returns [..., E]
// in the type of x. Differentiable once.
//
// One pass each way, bfloat16 and half computed in float, and all results are the same
// bits in every run, whatever the number of threads.
torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight = {},
                         const torch::Tensor& bias = {}, double epsilon = 1e-5);

// The same in plain tensor operations: what the fused path must equal.
torch::Tensor layer_norm_reference(const torch::Tensor& x,
                                   const torch::Tensor& weight = {},
                                   const torch::Tensor& bias = {},
                                   double epsilon = 1e-5);

}  // namespace longspan
