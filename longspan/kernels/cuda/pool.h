// Pooling over spans and prefixes; see ../pool.h. Rows of results are dense, [B, H, G,
// width]; `Inner` is double where the tokens are, else float.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

struct PoolTokens {
  Type type = Type::kFloat;
  int64_t examples = 0, heads = 0, tokens = 0, width = 0;
  Rows<const void> x = {};       // [B, H, N, width]
  Rows<const bool> keep = {};    // [B|1, H|1, N]; null: all
  Rows<const void> scores = {};  // [B, H, N] of Inner; null: all weigh the same
};

constexpr int kSpanBlock = 64;

struct Spans {
  int64_t count = 0;
  int64_t length = 1;  // of one, about
  // [count, 2]: from, to; null: span g begins at g * stride and has `size` tokens, or
  // as many as there are.
  const int32_t* ends = nullptr;
  int64_t size = 0, stride = 1;
  // For gradients where there are `ends`: which[starts[b]] .. which[starts[b + 1] - 1]
  // are the spans, ascending, that hold any of tokens kSpanBlock * b ..
  const int32_t* starts = nullptr;  // [blocks + 1]
  const int32_t* which = nullptr;
};

// See ../cpu/pool.h for base and factor.
struct PooledRows {
  void* out = nullptr;     // [B, H, G, width]
  void* base = nullptr;    // [B, H, G] of Inner, only with scores
  void* factor = nullptr;  // [B, H, G] of Inner
  void* lse = nullptr;     // [B, H, G] of Inner, only with scores
};

// offset = out_slope . out - lse_slope, [B, H, G] of Inner: the slope of the score of a
// token with weight w in a row is w * (out_slope . x - offset).
struct PoolOffsets {
  Type type = Type::kFloat;
  int64_t examples = 0, heads = 0, rows = 0, width = 0;
  Rows<const void> out = {}, out_slope = {};
  Rows<const void> lse_slope = {};  // of Inner
  void* offset = nullptr;
};

struct PoolSpans {
  PoolTokens tokens = {};
  Spans spans = {};
  bool divided = false;  // by the sum of the weights
  PooledRows pooled = {};
};

struct PoolSpansGradient {
  PoolTokens tokens = {};  // x only for scores_slope
  Spans spans = {};
  Rows<const void> out_slope = {};
  const void* base = nullptr;    // [B, H, G] of Inner, only with scores
  const void* factor = nullptr;  // [B, H, G] of Inner
  const void* offset = nullptr;  // [B, H, G] of Inner, only for scores_slope
  void* x_slope = nullptr;       // [B, H, N, width]; null: not wanted
  void* scores_slope = nullptr;  // [B, H, N] of Inner; null: not wanted
};

struct LargestOfSpans {
  PoolTokens tokens = {};
  Spans spans = {};
  void* out = nullptr;
  int32_t* place =
      nullptr;  // [B, H, G, width]: the token, -1 for none; null: not wanted
};

struct LargestOfSpansGradient {
  PoolTokens tokens = {};  // without x
  Spans spans = {};
  Rows<const void> out_slope = {};
  const int32_t* place = nullptr;
  void* x_slope = nullptr;
};

// `scratch`: prefix_scratch() numbers of Inner.
struct PoolPrefixes {
  PoolTokens tokens = {};
  int64_t segment = 1;
  bool divided = false;
  PooledRows pooled = {};
  void* scratch = nullptr;
};

struct PoolPrefixesGradient {
  PoolTokens tokens = {};  // x only for scores_slope
  int64_t segment = 1;
  Rows<const void> out_slope = {};
  const void* base = nullptr;    // [B, H, N] of Inner, only with scores
  const void* factor = nullptr;  // [B, H, N] of Inner
  const void* offset = nullptr;  // [B, H, N] of Inner, only for scores_slope
  void* x_slope = nullptr;       // [B, H, N, width]; null: not wanted
  // [prefix_pieces(), B, H, N] of Inner: their sum is the slope; null: not wanted.
  void* scores_slope = nullptr;
  void* scratch = nullptr;
};

struct LargestOfPrefixes {
  PoolTokens tokens = {};
  int64_t segment = 1;
  void* out = nullptr;
  void* scratch = nullptr;
};

struct LargestOfPrefixesGradient {
  PoolTokens tokens = {};  // without x
  int64_t segment = 1;
  const void* out = nullptr;  // [B, H, N, width]
  Rows<const void> out_slope = {};
  void* x_slope = nullptr;
  void* scratch = nullptr;
};

int64_t prefix_scratch(const PoolTokens& tokens, int64_t segment);
int64_t prefix_pieces(Type type, int64_t width);

// All launch kernels on `stream` and return a cudaError_t.
int pool_offsets(const PoolOffsets& task, Stream stream);
int pool_spans(const PoolSpans& task, Stream stream);
int pool_spans_gradient(const PoolSpansGradient& task, Stream stream);
int largest_of_spans(const LargestOfSpans& task, Stream stream);
int largest_of_spans_gradient(const LargestOfSpansGradient& task, Stream stream);
int pool_prefixes(const PoolPrefixes& task, Stream stream);
int pool_prefixes_gradient(const PoolPrefixesGradient& task, Stream stream);
int largest_of_prefixes(const LargestOfPrefixes& task, Stream stream);
int largest_of_prefixes_gradient(const LargestOfPrefixesGradient& task, Stream stream);

}  // namespace longspan::cuda
