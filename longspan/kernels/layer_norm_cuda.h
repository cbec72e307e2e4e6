// Layer norm on CUDA without autograd.

#pragma once

#include <torch/types.h>

namespace longspan {

// mean and rstd are what the gradient needs.
struct NormedRows {
  torch::Tensor y, mean, rstd;
};

// weight and bias may be undefined.
NormedRows layer_norm_cuda(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& bias, double epsilon);

struct LayerNormWanted {
  bool x, weight, bias;
};

// Undefined where not wanted; of weight and bias perhaps in float.
struct LayerNormSlopes {
  torch::Tensor x = {}, weight = {}, bias = {};
};

// `wide`: one of weight and bias is float where x is not.
LayerNormSlopes layer_norm_gradient_cuda(const torch::Tensor& slope,
                                         const torch::Tensor& x,
                                         const torch::Tensor& weight, bool wide,
                                         const torch::Tensor& mean,
                                         const torch::Tensor& rstd,
                                         LayerNormWanted wanted);

}  // namespace longspan
