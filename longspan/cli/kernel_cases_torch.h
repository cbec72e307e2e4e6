// LibTorch's own attention on CUDA, kernel by kernel, to compare ours with.

#pragma once

#include <cstdint>
#include <functional>

#include "longspan/cli/plain_attention.h"

namespace longspan::cli {

enum class TorchAttention { flash, cudnn, efficient };

struct TorchProblem {
  bool causal = false, backward = false;
  int64_t window = 0;  // keys seen on each side; 0: all
};

// Computes out, or the gradients of q, k and v from that of out, without autograd. q, k
// and v are [B, H, N, d]. Throws Error, or what LibTorch throws, where the kernel or
// this LibTorch does not serve the problem.
std::function<Tensors()> torch_step(TorchAttention kernel, const Tensors& qkv,
                                    const torch::Tensor& slope,
                                    const TorchProblem& problem);

}  // namespace longspan::cli
