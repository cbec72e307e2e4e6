#pragma once

#include <torch/types.h>

namespace longspan {

// Tokens mixed with their neighbours, every head by weights of its own:
//   out[b, h, n] = sum over t of weight[h, t] v[b, h, n + t - T/2], 0 outside.
// v: [B, Hk, N, w]; weight: [H, T], T odd, Hk a divisor of H. Returns [B, H, N, w] in
// the type of v. Differentiable once.
//
// O(N T w) in products of matrices, keeping nothing but the inputs for the gradient;
// the same bits in every run, whatever the number of threads. Inside namespace longspan
// name it in full, or the compiler finds LibTorch's as well.
torch::Tensor convolution(const torch::Tensor& v, const torch::Tensor& weight);

// The same in plain tensor operations: what the products must equal.
torch::Tensor convolution_reference(const torch::Tensor& v,
                                    const torch::Tensor& weight);

}  // namespace longspan
