// Attention whose weights are alpha-entmax of the scores in place of softmax: of keys
// with low scores they are exactly 0, of the more keys the larger alpha is. Peters et
// al. 2019, arXiv:1905.05702; Correia et al. 2019, arXiv:1909.00015.
//
// With e = alpha - 1 the weights of a query are
//   [e * score - tau]_+ ^ (1 / e), with the tau for which they sum to 1:
// sparsemax for alpha = 2, softmax in the limit alpha = 1.

#pragma once

#include <torch/types.h>

#include "longspan/kernels/block_attention.h"

namespace longspan {

// The words are those of block_attention() but for rows by index, of which it takes
// none: which keys a query sees, biases, and dropout of the weights with the same
// draws. `alpha` is [H], float, or double where q is, each from 1.01 to 2. A query that
// sees nothing gives 0. Returns out, [B, H, N, dv].
//
// An alpha beyond that is refused on the CPU. On other devices, which would have to be
// waited for, nobody looks: the caller must keep to it, by clamp() where alpha is
// learned; with 1 or less results may be NaN.
//
// Differentiable in q, k, v, biases and alpha, once. Scores and weights are computed in
// float (double for double inputs), and all results are the same bits every time,
// whatever the number of threads.
//
// On the CPU it is a fused kernel: time is that of the scores and, of all that follows
// them, of the keys that may have a weight. It needs O(N) memory beside inputs and
// results, for each thread the scores of up to 64 queries. On other devices it is
// entmax_attention_in_chunks(), of up to 512 queries each, but fewer where their scores
// of all examples and heads would take more than 1 GiB.
torch::Tensor entmax_attention(const Queries& queries, const Source& source,
                               const torch::Tensor& alpha,
                               const BlockAttention& options = {});

// The same in tensor operations, for `rows` queries of all heads at a time, in
// O(rows * M) memory; gradients compute each chunk again. On CUDA a kernel finds the
// weights of a row.
torch::Tensor entmax_attention_in_chunks(const Queries& queries, const Source& source,
                                         const torch::Tensor& alpha,
                                         const BlockAttention& options, int64_t rows);

// The same in plain tensor operations, O(N*M): what the others must equal.
torch::Tensor entmax_attention_reference(const Queries& queries, const Source& source,
                                         const torch::Tensor& alpha,
                                         const BlockAttention& options = {});

// The weights of rows of scores [.., M] for alpha [.., 1], in plain tensor operations:
// float or double, 0 where a score is minus infinity and in rows of nothing else.
torch::Tensor entmax_weights(const torch::Tensor& scores, const torch::Tensor& alpha);

}  // namespace longspan
