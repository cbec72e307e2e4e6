// Linear attention of plain bfloat16 features on tensor cores, without autograd; only
// in builds for CUDA.

#pragma once

#include "longspan/kernels/linear_attention_cpu.h"

namespace longspan {

// Whether these are bfloat16 features and values of widths that the tensor cores take,
// without decays and weights.
bool suits_tensor_cores(const LinearInputs& inputs, const LinearAttention& options);

// Gradients go through products that are rounded to bfloat16, as those of softmax
// attention. `kept` has out, as it was rounded, and den.
LinearForward linear_attention_pass(const LinearInputs& inputs,
                                    const LinearAttention& options,
                                    bool differentiable);
LinearInputSlopes linear_attention_pass_gradient(const LinearInputs& inputs,
                                                 const LinearAttention& options,
                                                 const LinearKept& kept,
                                                 const LinearResultSlopes& slopes,
                                                 const LinearWanted& wanted);

}  // namespace longspan
