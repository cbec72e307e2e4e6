#pragma once

#include <torch/types.h>

namespace longspan {

// gelu: x times the probability that a normal number is below x. gelu_tanh: its
// approximation with a hyperbolic tangent, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715
// x^3))). Both Hendrycks & Gimpel 2016, arXiv:1606.08415. relu: max(x, 0).
enum class Activation { gelu, gelu_tanh, relu };

// x [..., n] plus bias [n] (or undefined), then the activation. x: float, double,
// bfloat16 or half; bias in the type of x. Returns the type and shape of x.
// Differentiable once.
//
// One pass each way, bfloat16 and half computed in float; all results, that of the bias
// included, are the same bits in every run, whatever the number of threads.
torch::Tensor activate(const torch::Tensor& x, const torch::Tensor& bias,
                       Activation activation);

// The same in plain tensor operations: what the fused path must equal.
torch::Tensor activate_reference(const torch::Tensor& x, const torch::Tensor& bias,
                                 Activation activation);

// 1 / (1 + e^-x) and ln(1 + e^(sharpness x)) / sharpness, the same bits whatever the
// number of threads: LibTorch's own round otherwise at the ends of what a thread does.
torch::Tensor sigmoid(const torch::Tensor& x);
torch::Tensor softplus(const torch::Tensor& x, double sharpness = 1);

}  // namespace longspan
