// LibTorch's own attention on CUDA, for calls that are plainly dense or causal; only in
// builds for CUDA.

#pragma once

#include <torch/version.h>

#include "longspan/kernels/attention_call.h"

namespace longspan {

// Whether this LibTorch has one.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 5)
#define LONGSPAN_TORCH_HAS_ATTENTION 1
constexpr bool kTorchHasAttention = true;
#else
constexpr bool kTorchHasAttention = false;
#endif

// Whether it may be used (see use_torch_attention()) and serves this call.
bool torch_attention_serves(const AttentionCall& call, const AttentionSizes& sizes);

Attended torch_attention(const AttentionCall& call);

// Of q, k and v, from the gradient of out alone.
std::vector<torch::Tensor> torch_attention_gradient(const AttentionCall& call,
                                                    const Attended& results,
                                                    const torch::Tensor& out_slope);

}  // namespace longspan
