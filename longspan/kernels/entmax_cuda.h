// Rows of entmax weights on CUDA, without autograd.

#pragma once

#include <torch/types.h>

namespace longspan {

// The weights of scores [B, H, n, M], float or double, for alpha [H] of their type.
torch::Tensor entmax_rows_cuda(const torch::Tensor& scores, const torch::Tensor& alpha);

struct EntmaxRowSlopes {
  torch::Tensor scores;  // [B, H, n, M]
  torch::Tensor alpha;   // [H] double; undefined where not wanted
};

EntmaxRowSlopes entmax_rows_gradient_cuda(const torch::Tensor& weights,
                                          const torch::Tensor& slopes,
                                          const torch::Tensor& alpha, bool wants_alpha);

}  // namespace longspan
