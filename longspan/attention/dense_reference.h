// Pieces of the definitions that mechanisms are held against: plain tensor operations,
// O(N*M), and independent of the primitive.

#pragma once

#include <optional>

#include <torch/types.h>

#include "longspan/attention/pass.h"

namespace longspan {

// The pairs that `pass` lets see each other for N queries and M keys, [B|1, 1, N, M]
// bool: causality, padding of keys, segments.
torch::Tensor allowed_pairs(const Pass& pass, int64_t queries, int64_t keys,
                            torch::Device device);

// In place of minus infinity for the scores of hidden pairs, so that rows without a key
// stay free of NaN: nearly the lowest number of the type.
double hidden_score(torch::Dtype type);

// softmax(scale * q k^T + bias of the pass) v over the pairs where `visible`
// [B|1, H|1, N, M]; a row without any is 0. Keys and values may have fewer heads.
torch::Tensor masked_attention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& visible,
                               const Pass& pass, std::optional<double> scale = {});

}  // namespace longspan
