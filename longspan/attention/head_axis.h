// Between tokens of width H*w and heads of width w, and from heads of keys to those of
// queries.

#pragma once

#include <torch/types.h>

#include "longspan/kernels/total.h"

namespace longspan {

// [B, N, H*w] -> [B, H, N, w]
inline torch::Tensor in_heads(const torch::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// [B, H, N, w] -> [B, N, H*w]
inline torch::Tensor joined_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

// x [B, h, ..] -> [B, heads, ..]: each head of keys for the queries that share it.
inline torch::Tensor for_heads(const torch::Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  auto shape = x.sizes().vec();
  shape.insert(shape.begin() + 2, heads / x.size(1));
  const torch::Tensor apart = x.unsqueeze(2);
  // Only floats have gradients, which are sums.
  return (x.is_floating_point() ? spread(apart, shape) : apart.expand(shape))
      .flatten(1, 2);
}

// Weights [Hk, a, b] -> [heads, a, b]: each for the queries that share a head of keys.
inline torch::Tensor of_query_heads(const torch::Tensor& x, int64_t heads) {
  if (x.size(0) == heads) return x;
  return spread(x.unsqueeze(1), {x.size(0), heads / x.size(0), x.size(1), x.size(2)})
      .flatten(0, 1);
}

}  // namespace longspan
