// Linear attention on CUDA, without autograd; only in builds for CUDA.

#pragma once

#include "longspan/kernels/linear_attention_cpu.h"

namespace longspan {

// As their twins on the CPU, but that of LinearKept there are only out, den and scale.

LinearForward linear_attention_cuda(const LinearInputs& inputs,
                                    const LinearAttention& options,
                                    bool differentiable);

LinearInputSlopes linear_attention_gradient_cuda(const LinearInputs& inputs,
                                                 const LinearAttention& options,
                                                 const LinearKept& kept,
                                                 const torch::Tensor& max,
                                                 const LinearResultSlopes& slopes,
                                                 const LinearWanted& wanted);

}  // namespace longspan
