// A learned linear map of tokens, and how one begins.

#pragma once

#include <string>
#include <vector>

#include <torch/nn/init.h>
#include <torch/nn/module.h>

#include "longspan/kernels/matmul.h"

namespace longspan {

struct Linear {
  torch::Tensor weight;     // [out, in]
  torch::Tensor bias = {};  // [out], or undefined

  torch::Tensor operator()(const torch::Tensor& x) const {
    return longspan::linear(x, weight, bias);
  }
};

// x as it is if it is float or double, else in float.
inline torch::Tensor at_least_float(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

// Several maps of one x by one product: on CUDA that is fewer launches, and the
// gradient of x is one product as well.
inline std::vector<torch::Tensor> together(const std::vector<Linear>& maps,
                                           const torch::Tensor& x) {
  std::vector<torch::Tensor> weights, biases;
  std::vector<int64_t> widths;
  for (const Linear& map : maps) {
    weights.push_back(map.weight);
    if (map.bias.defined()) biases.push_back(map.bias);
    widths.push_back(map.weight.size(0));
  }
  TORCH_INTERNAL_ASSERT(biases.empty() || biases.size() == maps.size());
  const torch::Tensor bias = biases.empty() ? torch::Tensor() : torch::cat(biases);
  return longspan::linear(x, torch::cat(weights), bias).split_with_sizes(widths, -1);
}

// Parameters NAME_weight and, if it has one, NAME_bias of `owner`: Xavier-uniform, the
// bias 0.
inline Linear make_linear(torch::nn::Module& owner, const std::string& name,
                          int64_t out, int64_t in, bool has_bias) {
  Linear made{.weight =
                  owner.register_parameter(name + "_weight", torch::empty({out, in}))};
  torch::nn::init::xavier_uniform_(made.weight);
  if (has_bias) made.bias = owner.register_parameter(name + "_bias", torch::zeros(out));
  return made;
}

// Normal numbers of variance 1, drawn again where they are beyond two deviations.
inline torch::Tensor truncated_normal(at::IntArrayRef shape) {
  torch::Tensor x = torch::randn(shape);
  for (torch::Tensor far = x.abs() > 2; far.any().item<bool>(); far = x.abs() > 2)
    x = torch::where(far, torch::randn(shape), x);
  return x;
}

}  // namespace longspan
