// block_attention() on the fused kernels, without autograd. See docs/kernels.md.

#pragma once

#include "longspan/kernels/attention_call.h"

namespace longspan {

Attended fused_attention(const AttentionCall& call);

// Which queries a gradient is summed over: tiles, ascending; empty: all. The gradients
// of out and lse must be 0 in the others.
using QueryTiles = std::vector<int32_t>;

// The gradients of the learned tensors of `call`, in their order, from the results of
// the forward pass and the gradients of those, of which those that are undefined are 0;
// undefined where not `wanted`.
std::vector<torch::Tensor> fused_attention_gradient(AttentionCall call,
                                                    const Attended& results,
                                                    const Attended& slopes,
                                                    const std::vector<bool>& wanted,
                                                    const QueryTiles& tiles = {});

}  // namespace longspan
