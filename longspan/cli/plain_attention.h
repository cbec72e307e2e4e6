// Attention as one writes it without fused kernels, to compare them with.

#pragma once

#include <vector>

#include <torch/types.h>

namespace longspan::cli {

// q, k, v
using Tensors = std::vector<torch::Tensor>;

// Products, mask and softmax of [.., N, d] with [.., M, d]; `hidden` [.., N, M] may be
// undefined.
torch::Tensor composite_attention(const Tensors& qkv, const torch::Tensor& hidden);

// The window of keys query - window .. query + window: chunks of 2 * window queries,
// each with the 4 * window keys they see as overlapping views (the cost of Longformer's
// chunks). N is a multiple of the chunk.
torch::Tensor sliding_chunks(const Tensors& qkv, int64_t window,
                             const torch::Tensor& hidden);
torch::Tensor hidden_in_sliding_chunks(int64_t length, int64_t window);

// Causal linear attention of [H, N, m] with [H, N, dv], divided by its weights: scores
// within chunks, sums of k v^T over the chunks before. N is a multiple of the chunk.
torch::Tensor linear_chunks(const Tensors& qkv, int64_t chunk);

// The same token by token in one fused loop, for m = dv = 64: as one writes it, or so
// that what a token sums up stays in registers.
torch::Tensor linear_recurrence(const Tensors& qkv, bool in_registers);

}  // namespace longspan::cli
