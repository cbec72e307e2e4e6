// What block_attention() is given, as its implementations share it.

#pragma once

#include <vector>

#include <ATen/core/ivalue.h>

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

  // All of them: what autograd keeps, for it notices when one is changed.
  std::vector<torch::Tensor*> tensors();
};

// A call without its tensors, as autograd keeps it.
struct KeptCall : torch::CustomClassHolder {
  explicit KeptCall(AttentionCall given);

  // The call with tensors in the order of AttentionCall::tensors(); there may be more.
  AttentionCall with(const std::vector<torch::Tensor>& tensors) const;

  AttentionCall call;
};

// Throws unless everything fits.
AttentionSizes check(const AttentionCall& call);

// The pairs of places that the layout of a source shows, over all examples and heads.
int64_t visited_pairs(const Queries& queries, const Source& source,
                      const AttentionSizes& sizes);

// 0 or 1 / (1 - p) for every pair [B, H, S, T] of source `source`; rows [B|1, H|1, S]
// and [B|1, H|1, T] are those of q and of k. In plain tensor operations.
torch::Tensor dropout_factors(const Dropout& dropout, const torch::Tensor& query_rows,
                              const torch::Tensor& key_rows, int64_t source,
                              const AttentionSizes& sizes);

}  // namespace longspan
