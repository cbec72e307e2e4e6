// What block_attention() is given, as its implementations share it.

#pragma once

#include <vector>

#include "longspan/kernels/block_attention.h"

namespace longspan {

// B, H, N, d and dv of a call.
struct AttentionSizes {
  int64_t examples, heads, queries, width, value_width;
};

struct AttentionCall {
  Queries queries;
  std::vector<Source> sources;
  BlockAttention options;

  double scale() const;
  int64_t query_places() const;

  // Those that have gradients and are there, in a fixed order: q, and k, v and biases
  // of each source.
  std::vector<torch::Tensor*> learned();

  // The others that are there.
  std::vector<torch::Tensor*> integers();
};

// Throws unless everything fits.
AttentionSizes check(const AttentionCall& call);

}  // namespace longspan
