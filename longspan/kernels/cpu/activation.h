// What the vector code sees of activations. No torch, no containers: see vec.h.

#pragma once

#include <cstdint>

namespace longspan::cpu {

// Rows of `width` numbers, densely packed.
template <class Number>
struct ActivationRows {
  const Number* x = nullptr;     // [rows, width]
  const Number* bias = nullptr;  // [width], or null for none
  Number* y = nullptr;           // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
};

template <class Number>
struct ActivationGradientRows {
  const Number* dy = nullptr;    // [rows, width]
  const Number* x = nullptr;     // [rows, width]
  const Number* bias = nullptr;  // [width], or null for none
  Number* dx = nullptr;          // [rows, width], or null for not wanted
  double* dbias = nullptr;       // [width], added to, or null for not wanted
  int64_t rows = 0;
  int64_t width = 0;
};

using Activate = void(const ActivationRows<float>& rows);
using ActivateGradient = void(const ActivationGradientRows<float>& rows);

namespace portable {
Activate gelu, gelu_tanh, relu;
ActivateGradient gelu_gradient, gelu_tanh_gradient, relu_gradient;
}  // namespace portable
namespace avx2 {
Activate gelu, gelu_tanh, relu;
ActivateGradient gelu_gradient, gelu_tanh_gradient, relu_gradient;
}  // namespace avx2
namespace avx512 {
Activate gelu, gelu_tanh, relu;
ActivateGradient gelu_gradient, gelu_tanh_gradient, relu_gradient;
}  // namespace avx512

}  // namespace longspan::cpu
