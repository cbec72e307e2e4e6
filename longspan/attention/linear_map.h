// A learned linear map of tokens, and how one begins.

#pragma once

#include <string>
#include <vector>

#include <torch/nn/init.h>
#include <torch/nn/module.h>

#include "longspan/kernels/matmul.h"

namespace longspan {

struct Linear {
  torch::Tensor weight;     // [out, in]; after `down` [out, rank]
  torch::Tensor bias = {};  // [out], or undefined
  // [rank, in], or undefined: what comes first, Winata et al. 2020, arXiv:1910.13923
  torch::Tensor down = {};

  torch::Tensor operator()(const torch::Tensor& x) const {
    return longspan::linear(down.defined() ? longspan::linear(x, down) : x, weight,
                            bias);
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
    TORCH_INTERNAL_ASSERT(!map.down.defined());
    weights.push_back(map.weight);
    if (map.bias.defined()) biases.push_back(map.bias);
    widths.push_back(map.weight.size(0));
  }
  TORCH_INTERNAL_ASSERT(biases.empty() || biases.size() == maps.size());
  const torch::Tensor bias = biases.empty() ? torch::Tensor() : torch::cat(biases);
  return longspan::linear(x, torch::cat(weights), bias).split_with_sizes(widths, -1);
}

// Parameters NAME_weight and, if it has them, NAME_bias and NAME_down of `owner`:
// Xavier-uniform, the bias 0. `rank` 0: full.
inline Linear make_linear(torch::nn::Module& owner, const std::string& name,
                          int64_t out, int64_t in, bool has_bias, int64_t rank = 0) {
  const auto weight = [&](const char* part, int64_t rows, int64_t columns) {
    torch::Tensor made =
        owner.register_parameter(name + part, torch::empty({rows, columns}));
    torch::nn::init::xavier_uniform_(made);
    return made;
  };
  Linear made{.weight = weight("_weight", out, rank > 0 ? rank : in)};
  if (rank > 0) made.down = weight("_down", rank, in);
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
