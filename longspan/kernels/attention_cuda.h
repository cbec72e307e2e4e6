// block_attention() on the CUDA kernels, without autograd; only in builds for CUDA. See
// docs/kernels.md.

#pragma once

#include "longspan/kernels/attention_call.h"

namespace longspan {

Attended attention_cuda(const AttentionCall& call, const AttentionSizes& sizes);

// As fused_attention_gradient(). Slopes that are undefined are 0.
std::vector<torch::Tensor> attention_gradient_cuda(AttentionCall call,
                                                   const AttentionSizes& sizes,
                                                   const Attended& results,
                                                   const Attended& slopes,
                                                   const std::vector<bool>& wanted);

}  // namespace longspan
