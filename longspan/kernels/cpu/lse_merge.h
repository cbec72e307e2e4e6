// What the vector code sees of merging attention. No torch, no containers: see vec.h.

#pragma once

#include <cstdint>

namespace longspan::cpu {

template <class Number>
struct LseMergePart {
  const Number* out = nullptr;  // [rows, width], unit stride along a row
  int64_t out_stride = 0;       // from row to row
  const Number* lse = nullptr;  // [rows]
};

template <class Number>
struct LseMergeRows {
  const LseMergePart<Number>* parts = nullptr;
  int64_t part_count = 0;
  Number* weights = nullptr;  // [part_count, rows]: scratch
  Number* out = nullptr;      // [rows, width]
  Number* lse = nullptr;      // [rows]
  int64_t rows = 0;
  int64_t width = 0;
  bool past_caches = false;  // the results are much larger than the caches
};

// Null for what is not wanted.
template <class Number>
struct LseMergePartGradient {
  Number* out = nullptr;  // [rows, width]
  Number* lse = nullptr;  // [rows]
};

template <class Number>
struct LseMergeGradientRows {
  const LseMergePart<Number>* parts = nullptr;
  const LseMergePartGradient<Number>* gradients = nullptr;  // of the parts
  int64_t part_count = 0;
  Number* weights = nullptr;     // [part_count, rows]: scratch
  const Number* dout = nullptr;  // [rows, width], unit stride along a row
  int64_t dout_stride = 0;       // from row to row
  const Number* dlse = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t width = 0;
  bool past_caches = false;  // the results are much larger than the caches
};

template <class Number>
using LseMerge = void(const LseMergeRows<Number>& rows);
template <class Number>
using LseMergeGradient = void(const LseMergeGradientRows<Number>& rows);

namespace portable {
LseMerge<float> lse_merge;
LseMerge<double> lse_merge;
LseMergeGradient<float> lse_merge_gradient;
LseMergeGradient<double> lse_merge_gradient;
}  // namespace portable
namespace avx2 {
LseMerge<float> lse_merge;
LseMerge<double> lse_merge;
LseMergeGradient<float> lse_merge_gradient;
LseMergeGradient<double> lse_merge_gradient;
}  // namespace avx2
namespace avx512 {
LseMerge<float> lse_merge;
LseMerge<double> lse_merge;
LseMergeGradient<float> lse_merge_gradient;
LseMergeGradient<double> lse_merge_gradient;
}  // namespace avx512

}  // namespace longspan::cpu
