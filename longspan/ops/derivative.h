// The kernels of NAME_backward, and those that let autograd call it.

#pragma once

#include "longspan/ops/operator.h"

namespace longspan::ops {

// The arguments of NAME_backward that come before those of NAME: see Slopes.
inline constexpr char kSlopesSchema[] =
    "Tensor[] results, Tensor[] gradients, bool[] wanted, ";

// Of NAME_backward, which gives the wanted gradients.
torch::CppFunction gradient_kernel(const Operator& definition);
torch::CppFunction gradient_shapes_kernel();
torch::CppFunction no_second_gradient_kernel();

// Of NAME.
torch::CppFunction autograd_kernel(const Operator& definition);

}  // namespace longspan::ops
