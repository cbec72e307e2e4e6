// Linear attention on the CPU without autograd: how heads and tokens are shared out to
// the vector code.

#pragma once

#include <torch/types.h>

#include "longspan/kernels/linear_attention.h"

namespace longspan {

// What the gradients need beside the inputs and results.
struct LinearKept {
  torch::Tensor out;    // as it was before rounding to the type of v
  torch::Tensor den;    // [B, H, N], times exp(-scale)
  torch::Tensor scale;  // [B, H, N], undefined for plain features
  // Causal: the states before every 256th token; else the state after all keys.
  torch::Tensor sums;   // [B * H, states, m, dv + 1]
  torch::Tensor peaks;  // [B * H, states, m], undefined for plain features
};

struct LinearForward {
  LinearAttended attended;
  LinearKept kept;
};

// Causal states are kept only if `differentiable`.
LinearForward linear_attention_cpu(const LinearInputs& inputs,
                                   const LinearAttention& options, bool differentiable);

// Slopes of the results; undefined for 0.
struct LinearResultSlopes {
  torch::Tensor out, lse, sums;
};

// Gradients of the inputs, of their shapes and types; undefined where not wanted.
struct LinearWanted {
  bool q, k, v, log_decay, weights, sums;
};
struct LinearInputSlopes {
  torch::Tensor q, k, v, log_decay, weights, sums;
};

// `max`: of the final state.
LinearInputSlopes linear_attention_gradient_cpu(const LinearInputs& inputs,
                                                const LinearAttention& options,
                                                const LinearKept& kept,
                                                const torch::Tensor& max,
                                                const LinearResultSlopes& slopes,
                                                const LinearWanted& wanted);

}  // namespace longspan
