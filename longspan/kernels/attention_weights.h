// How block_attention() weighed its keys, for people to look at: without gradients and
// without dropout, from the lse it returned, so that nothing of size N*M is needed.

#pragma once

#include <vector>

#include "longspan/kernels/block_attention.h"

namespace longspan {

// For each source [B, H, n, M]: the weights of rows rows[0] .. rows[n - 1] of q. With
// an lse over more keys than those of `sources` the weights are shares of all of them.
std::vector<torch::Tensor> row_weights(const Queries& queries,
                                       const std::vector<Source>& sources,
                                       const torch::Tensor& lse,
                                       const std::vector<int64_t>& rows,
                                       const BlockAttention& options = {});

// For each source [B, H, M]: the sum of the weights that all queries give to a key.
std::vector<torch::Tensor> column_mass(const Queries& queries,
                                       const std::vector<Source>& sources,
                                       const torch::Tensor& lse,
                                       const BlockAttention& options = {});

// Both in plain tensor operations, O(N*M).
std::vector<torch::Tensor> row_weights_reference(const Queries& queries,
                                                 const std::vector<Source>& sources,
                                                 const torch::Tensor& lse,
                                                 const std::vector<int64_t>& rows,
                                                 const BlockAttention& options = {});
std::vector<torch::Tensor> column_mass_reference(const Queries& queries,
                                                 const std::vector<Source>& sources,
                                                 const torch::Tensor& lse,
                                                 const BlockAttention& options = {});

}  // namespace longspan
