// Many tokens as one: their largest, mean, sum or weighted mean, over spans or over
// prefixes.

#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "longspan/kernels/layout.h"

namespace longspan {

// `max` is of every column by itself, and gives its gradient to the first of equal
// largest; `softmax` is the mean weighted by exp(score), at any scale of the scores.
enum class Pooling { max, mean, sum, softmax };

struct PoolInputs {
  torch::Tensor x = {};     // [B, H, N, d], float, double, bfloat16 or half
  torch::Tensor keep = {};  // [B|1, H|1, N] bool: the tokens that count; undefined: all
  torch::Tensor scores = {};  // [B, H, N], for softmax and only there; in the type of
                              // x, or float where x is bfloat16 or half
};

struct Pooled {
  torch::Tensor out = {};  // [B, H, G, d] in the type of x; 0 where there is nothing
  // [B, H, G], of softmax only: log of the sum of exp(score); float, double for double
  // inputs. Minus infinity where there is nothing.
  torch::Tensor lse = {};
};

// Spans of `size` tokens that begin every `stride` tokens, up to the first that reaches
// the end, which may be shorter. With a stride of at most the size every token is in
// one.
std::vector<Span> equal_spans(int64_t length, int64_t size, int64_t stride);

// out[g] pools the tokens of spans[g]. Spans may overlap, be empty and come in any
// order; they must lie within 0..N.
//
// Differentiable in x and scores, once. It is one pass each way, bfloat16 and half
// computed in float, and all results are the same bits in every run, whatever the
// number of threads. Tokens that do not count may hold anything, also NaN.
Pooled pool_spans(const PoolInputs& inputs, const std::vector<Span>& spans,
                  Pooling how);

// The token that the largest of every span is of, column by column and the first of
// equal ones: [B, H, G, d] int, -1 where there is nothing.
torch::Tensor largest_places(const PoolInputs& inputs, const std::vector<Span>& spans);

// out[i] pools the tokens from the first of i's segment up to i itself; segments are of
// `segment` tokens, the last perhaps shorter; 0: all tokens are one segment. O(N d),
// on CUDA perhaps in two passes. As above in all else.
Pooled pool_prefixes(const PoolInputs& inputs, int64_t segment, Pooling how);

// The same in plain tensor operations, O(N G d): what the fused paths must equal.
Pooled pool_spans_reference(const PoolInputs& inputs, const std::vector<Span>& spans,
                            Pooling how);
Pooled pool_prefixes_reference(const PoolInputs& inputs, int64_t segment, Pooling how);

}  // namespace longspan
