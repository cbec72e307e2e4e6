// Matrix products whose bits do not depend on the number of threads.
//
// A BLAS sums along the inner axis in other pieces when it runs on several threads.
// Here a product is cut into tiles by its size alone, and each tile is computed by one
// thread.

#pragma once

#include <torch/types.h>

namespace longspan {

// Inside namespace longspan name these in full, or the compiler finds LibTorch's as
// well.

// a [.., m, k] times b [.., k, n], leading axes broadcast: [.., m, n]. Differentiable,
// any number of times. On CUDA it is LibTorch's own.
torch::Tensor matmul(const torch::Tensor& a, const torch::Tensor& b);

// x weight^T + bias, for x [.., in], weight [out, in], bias [out] or undefined.
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight,
                     const torch::Tensor& bias = {});

}  // namespace longspan
