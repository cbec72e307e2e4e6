// What the vector code sees of layer norm. No torch, no containers: see vec.h.

#pragma once

#include <cstdint>

namespace longspan::cpu {

// Rows of `width` numbers, densely packed.
template <class Number>
struct LayerNormRows {
  const Number* x = nullptr;       // [rows, width]
  const Number* weight = nullptr;  // [width], or null for 1
  const Number* bias = nullptr;    // [width], or null for 0
  Number* y = nullptr;             // [rows, width]
  double* mean = nullptr;          // [rows]: a float is too coarse far from zero
  Number* rstd = nullptr;          // [rows]: 1 / sqrt(variance + epsilon)
  int64_t rows = 0;
  int64_t width = 0;
  Number epsilon = 0;
};

template <class Number>
struct LayerNormGradientRows {
  const Number* dy = nullptr;      // [rows, width]
  const Number* x = nullptr;       // [rows, width]
  const Number* weight = nullptr;  // [width], or null for 1
  const double* mean = nullptr;    // [rows]
  const Number* rstd = nullptr;    // [rows]
  Number* dx = nullptr;            // [rows, width], or null for not wanted
  double* dweight = nullptr;       // [width], added to, or null for not wanted
  double* dbias = nullptr;         // [width], added to, or null for not wanted
  int64_t rows = 0;
  int64_t width = 0;
};

using LayerNorm = void(const LayerNormRows<float>& rows);
using LayerNormGradient = void(const LayerNormGradientRows<float>& rows);

namespace portable {
LayerNorm layer_norm;
LayerNormGradient layer_norm_gradient;
}  // namespace portable
namespace avx2 {
LayerNorm layer_norm;
LayerNormGradient layer_norm_gradient;
}  // namespace avx2
namespace avx512 {
LayerNorm layer_norm;
LayerNormGradient layer_norm_gradient;
}  // namespace avx512

}  // namespace longspan::cpu
