// A pass in the words of the block-sparse primitive: what all its mechanisms share.

#pragma once

#include <torch/types.h>

#include "longspan/attention/pass.h"
#include "longspan/kernels/block_attention.h"

namespace longspan {

struct Prepared {
  Queries queries;
  Source source;  // its keys carry padding, segments, positions, bias, and the past
  BlockAttention options;
  torch::Tensor global = {};  // [B, M] bool: real keys that all see; or undefined
  // The keys that causality shows where positions are the sequence's own: a mechanism
  // lays its pattern over it. Where positions are given, the keys' intervals say it.
  Pattern order;

  int64_t query_count() const { return queries.q.size(2); }
  int64_t key_count() const { return source.k.size(2); }
};

// Appends k and v to pass.state, if there is one, and takes the keys from there.
// Without given positions the queries are the last of the keys.
Prepared prepare(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                 Pass& pass);

// `to` of a source that shows the keys where `real` [B, M], [B, 1, M].
torch::Tensor open_where(const torch::Tensor& real);

// Leaves only the keys `kept` [n] of those that prepare() put into `state`.
void keep_keys(Record& state, const torch::Tensor& kept);

}  // namespace longspan
