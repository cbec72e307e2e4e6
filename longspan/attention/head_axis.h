// Between tokens of width H*w and heads of width w.

#pragma once

#include <torch/types.h>

namespace longspan {

// [B, N, H*w] -> [B, H, N, w]
inline torch::Tensor in_heads(const torch::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// [B, H, N, w] -> [B, N, H*w]
inline torch::Tensor joined_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

}  // namespace longspan
