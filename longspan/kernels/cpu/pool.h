// What the vector code sees of pooling. No torch, no containers: see vec.h.
//
// A pooled row is factor * the sum of exp(score - base) * x over its tokens. The base
// is the largest score, or for prefixes one not far below it, 0 where tokens have no
// scores; the factor is 1 over the sum of the weights exp(score - base), 1 where
// nothing is divided by it, and 0 where there is nothing.

#pragma once

#include <cstdint>

namespace longspan::cpu {

// As many columns, or twice as many, are worked on together; and as many tokens.
inline constexpr int kPoolColumns = 32, kPoolTokens = 64;

// The tokens of one head.
template <class Number>
struct PoolTokens {
  const Number* x = nullptr;   // [tokens, width], unit stride along a row
  int64_t x_stride = 0;        // from row to row
  const bool* keep = nullptr;  // [tokens], or null for all
  const Number* scores =
      nullptr;  // [tokens], or null: all that are kept weigh the same
};

template <class Number>
struct PooledRows {
  Number* out = nullptr;     // [rows, width]
  int64_t out_stride = 0;    // from row to row
  Number* base = nullptr;    // [rows], or null for not wanted; only with scores
  Number* factor = nullptr;  // [rows], or null for not wanted
  Number* lse = nullptr;     // [rows], or null for not wanted; only with scores
};

template <class Number>
struct PoolSpans {
  PoolTokens<Number> tokens = {};
  const int64_t* spans = nullptr;  // [span_count, 2]: from, to
  int64_t span_count = 0;
  int64_t width = 0;
  bool divided = false;    // by the sum of the weights
  double* sums = nullptr;  // [width rounded up to kPoolColumns]: scratch
  PooledRows<Number> pooled = {};
};

// The gradients of at most kPoolTokens tokens.
template <class Number>
struct PoolSpansGradient {
  PoolTokens<Number> tokens = {};
  int64_t first = 0;  // of the tokens
  int64_t count = 0;
  const int64_t* spans = nullptr;  // [all spans, 2]: from, to
  const int64_t* which =
      nullptr;  // [which_count]: the spans that hold any of the tokens
  int64_t which_count = 0;
  int64_t width = 0;
  const Number* base = nullptr;    // [all spans]; only with scores
  const Number* factor = nullptr;  // [all spans]
  const double* offset = nullptr;  // [all spans]: see PoolOffsets; only with dscores
  const Number* dout = nullptr;    // [all spans, width]
  int64_t dout_stride = 0;         // from row to row
  Number* dx = nullptr;            // [all tokens, width], or null for not wanted
  Number* dscores = nullptr;       // [all tokens], or null for not wanted
};

// out[i] pools the tokens of i's segment up to i.
template <class Number>
struct PoolPrefixes {
  PoolTokens<Number> tokens = {};
  int64_t token_count = 0;
  int64_t segment = 0;  // tokens; at least 1
  int64_t width = 0;
  bool divided = false;    // by the sum of the weights
  double* sums = nullptr;  // [width rounded up to kPoolColumns]: scratch
  PooledRows<Number> pooled = {};
};

template <class Number>
struct PoolPrefixesGradient {
  PoolTokens<Number> tokens = {};
  int64_t token_count = 0;
  int64_t segment = 0;  // tokens; at least 1
  int64_t width = 0;
  double* sums = nullptr;          // [width rounded up to kPoolColumns]: scratch
  const Number* base = nullptr;    // [tokens]; only with scores
  const Number* factor = nullptr;  // [tokens]
  const double* offset = nullptr;  // [tokens]: see PoolOffsets; null for 0
  const Number* dout = nullptr;    // [tokens, width]
  int64_t dout_stride = 0;         // from row to row
  Number* dx = nullptr;            // [tokens, width], or null for not wanted
  int64_t dx_stride = 0;           // from row to row
  double* dscores = nullptr;       // [tokens], or null for not wanted
};

// offset = dout . out - dlse: of every token of a row with weight w, dscore is
// w * (dout . x - offset).
template <class Number>
struct PoolOffsets {
  const Number* dout = nullptr;  // [rows, width]
  int64_t dout_stride = 0;       // from row to row
  const Number* out = nullptr;   // [rows, width]
  const Number* dlse = nullptr;  // [rows]
  double* offset = nullptr;      // [rows]
  int64_t rows = 0;
  int64_t width = 0;
};

template <class Number>
struct LargestOfSpans {
  PoolTokens<Number> tokens = {};
  const int64_t* spans = nullptr;  // [span_count, 2]: from, to
  int64_t span_count = 0;
  int64_t width = 0;
  Number* out = nullptr;     // [span_count, width]
  int32_t* place = nullptr;  // [span_count, width]: the token it is of, -1 for none; or
                             // null for not wanted
  int64_t stride = 0;        // of out and place, from row to row
};

template <class Number>
struct LargestOfPrefixes {
  PoolTokens<Number> tokens = {};
  int64_t token_count = 0;
  int64_t segment = 0;  // tokens; at least 1
  int64_t width = 0;
  Number* out = nullptr;   // [tokens, width]
  int64_t out_stride = 0;  // from row to row
};

template <class Number>
struct LargestOfPrefixesGradient {
  const bool* keep = nullptr;  // [tokens], or null for all
  int64_t token_count = 0;
  int64_t segment = 0;  // tokens; at least 1
  int64_t width = 0;
  const Number* out = nullptr;   // [tokens, width]
  int64_t out_stride = 0;        // from row to row
  const Number* dout = nullptr;  // [tokens, width]
  int64_t dout_stride = 0;       // from row to row
  Number* dx = nullptr;          // [tokens, width]
  int64_t dx_stride = 0;         // from row to row
};

template <template <class> class Task, class Number>
using Pool = void(const Task<Number>& task);

namespace portable {
Pool<PoolSpans, float> pool;
Pool<PoolSpans, double> pool;
Pool<PoolSpansGradient, float> pool;
Pool<PoolSpansGradient, double> pool;
Pool<PoolPrefixes, float> pool;
Pool<PoolPrefixes, double> pool;
Pool<PoolPrefixesGradient, float> pool;
Pool<PoolPrefixesGradient, double> pool;
Pool<PoolOffsets, float> pool;
Pool<PoolOffsets, double> pool;
Pool<LargestOfSpans, float> pool;
Pool<LargestOfSpans, double> pool;
Pool<LargestOfPrefixes, float> pool;
Pool<LargestOfPrefixes, double> pool;
Pool<LargestOfPrefixesGradient, float> pool;
Pool<LargestOfPrefixesGradient, double> pool;
}  // namespace portable
namespace avx2 {
Pool<PoolSpans, float> pool;
Pool<PoolSpans, double> pool;
Pool<PoolSpansGradient, float> pool;
Pool<PoolSpansGradient, double> pool;
Pool<PoolPrefixes, float> pool;
Pool<PoolPrefixes, double> pool;
Pool<PoolPrefixesGradient, float> pool;
Pool<PoolPrefixesGradient, double> pool;
Pool<PoolOffsets, float> pool;
Pool<PoolOffsets, double> pool;
Pool<LargestOfSpans, float> pool;
Pool<LargestOfSpans, double> pool;
Pool<LargestOfPrefixes, float> pool;
Pool<LargestOfPrefixes, double> pool;
Pool<LargestOfPrefixesGradient, float> pool;
Pool<LargestOfPrefixesGradient, double> pool;
}  // namespace avx2
namespace avx512 {
Pool<PoolSpans, float> pool;
Pool<PoolSpans, double> pool;
Pool<PoolSpansGradient, float> pool;
Pool<PoolSpansGradient, double> pool;
Pool<PoolPrefixes, float> pool;
Pool<PoolPrefixes, double> pool;
Pool<PoolPrefixesGradient, float> pool;
Pool<PoolPrefixesGradient, double> pool;
Pool<PoolOffsets, float> pool;
Pool<PoolOffsets, double> pool;
Pool<LargestOfSpans, float> pool;
Pool<LargestOfSpans, double> pool;
Pool<LargestOfPrefixes, float> pool;
Pool<LargestOfPrefixes, double> pool;
Pool<LargestOfPrefixesGradient, float> pool;
Pool<LargestOfPrefixesGradient, double> pool;
}  // namespace avx512

}  // namespace longspan::cpu
