// Activations on CUDA without autograd.

#pragma once

#include <torch/types.h>

#include "longspan/kernels/activation.h"

namespace longspan {

// The bias may be undefined.
torch::Tensor activate_cuda(const torch::Tensor& x, const torch::Tensor& bias,
                            Activation activation);

struct ActivationWanted {
  bool x, bias;
};

// Undefined where not wanted.
struct ActivationSlopes {
  torch::Tensor x = {}, bias = {};
};

ActivationSlopes activate_gradient_cuda(const torch::Tensor& slope,
                                        const torch::Tensor& x,
                                        const torch::Tensor& bias,
                                        Activation activation, ActivationWanted wanted);

}  // namespace longspan
