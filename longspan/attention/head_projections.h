// The linear maps around an attention, for mixers that make their own.

#pragma once

#include <string>

#include <torch/types.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"

namespace longspan {

// Tokens to queries, keys and values by heads, and heads back to tokens. Parameters
// PREFIXq_weight, k, v, out of `owner`: Xavier-uniform, biases 0.
class HeadProjections {
 public:
  HeadProjections(torch::nn::Module& owner, const std::string& prefix,
                  const Sizes& sizes, bool has_bias);

  // x: [B, n, E]
  torch::Tensor q(const torch::Tensor& x) const;  // [B, H, n, d]
  torch::Tensor k(const torch::Tensor& x) const;  // [B, Hk, n, d]
  torch::Tensor v(const torch::Tensor& x) const;  // [B, Hk, n, dv]
  // [B, H, n, dv] -> [B, n, E]
  torch::Tensor out(const torch::Tensor& heads) const;

 private:
  int64_t heads_, key_heads_;
  Linear q_, k_, v_, out_;
};

}  // namespace longspan
