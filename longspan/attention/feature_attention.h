// Attention by features of queries and keys: what the kernelised mechanisms share.
//
// A mechanism says the features, or their logs, and how a row is normalised. Padding
// and decoding are done here, and the definition from the products of all features.

#pragma once

#include <cstdint>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"
#include "longspan/kernels/linear_attention.h"

namespace longspan {

// What a row can that is a sum over keys and nothing else.
inline constexpr Abilities kFeatureAbilities{.causal = Causal::optional,
                                             .padding = true,
                                             .cross = true,
                                             .decoding = true,
                                             .grouped = true};

// How many numbers the sums over `features` features are for one example.
constexpr int64_t sums_kept(const Sizes& sizes, int64_t features, bool log_features) {
  return sizes.heads * (features * (sizes.value_width + 1) + (log_features ? 1 : 0));
}

// linear_attention() after what `state` has seen, if it is not null; it then has seen
// these keys as well.
LinearAttended continued_attention(LinearInputs inputs, const LinearAttention& options,
                                   Record* state);

// The out of linear attention in the form `pass` asks for, over its real tokens and
// after pass.state. With a context and a state the sums are those of the whole context:
// its keys are given once, and then none.
torch::Tensor attend_by_features(LinearInputs inputs, LinearAttention options,
                                 Pass& pass);

// The same by the definition, in plain tensor operations: features q [B, H, N, m] and
// k [B, Hk, M, m], not their logs; a pair counts times `pairs` [B|1, H|1, N, M].
torch::Tensor define_by_features(const torch::Tensor& q, const torch::Tensor& k,
                                 const torch::Tensor& v, const torch::Tensor& pairs,
                                 const LinearAttention& options);

// Where every token is in the sums that all, or all later ones, read.
Sight sight_of_sums(int64_t tokens, bool causal);

}  // namespace longspan
