// Attention with a residual and a feed-forward of its own, the multihead attention
// block of Lee et al. 2019, arXiv:1810.00825. With Q = x W_q, K = y W_k, V = y W_v, and
// biases,
//   O = norm(concat_h(Q_h + softmax(s Q_h K_h^T) V_h)),  out = norm(O + relu(O W_o)).
//
// There all widths are one. Here Q has max(d, dv) numbers a head, of which the first d
// ask and the first dv are the residual, and where H*dv is not E a linear map brings
// the result to E before the last norm.

#pragma once

#include <torch/nn/module.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"

namespace longspan {

class MultiheadBlock : public torch::nn::Module {
 public:
  struct Options {
    bool norm = true;
    bool full_scale = true;  // s = (H*d)^-1/2, as published; else d^-1/2
  };

  MultiheadBlock(const Sizes& sizes, const Options& options);

  // x: [B|1, n, E], projected once where all examples have the same; y: [B, m, E];
  // real: [B, m] bool, false at padding of y, or undefined. Returns [B, n, E].
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y,
                        const torch::Tensor& real, const Dropout& dropout = {}) const;

  // The same in plain tensor operations, O(n*m), without dropout.
  torch::Tensor reference(const torch::Tensor& x, const torch::Tensor& y,
                          const torch::Tensor& real) const;

 private:
  // Scale and shift of a layer norm; undefined where there is none.
  struct Norm {
    torch::Tensor weight = {}, bias = {};
  };

  Sizes sizes_;
  double scale_;
  Linear q_, k_, v_, inner_, out_;  // out_.weight undefined where H*dv is E
  Norm norms_[2];
};

}  // namespace longspan
