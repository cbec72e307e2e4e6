// A learned linear map of tokens, and how one begins.

#pragma once

#include <string>

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
