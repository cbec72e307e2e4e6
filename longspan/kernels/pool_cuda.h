// Pooling on CUDA without autograd; only in builds for CUDA. As the twins on the CPU,
// but that all results for x and out are in the type of x.

#pragma once

#include <cstdint>

#include <torch/types.h>

#include "longspan/kernels/pool_cpu.h"

namespace longspan {

Weighed pool_by_weights_cuda(const PoolInputs& inputs, const PoolWhere& where,
                             bool divided);

PoolGradients pool_by_weights_gradient_cuda(const PoolInputs& inputs, int64_t tokens,
                                            const PoolWhere& where,
                                            const Weighed& result,
                                            const WeighedSlopes& slopes,
                                            PoolWanted wanted);

Largest pool_largest_cuda(const PoolInputs& inputs, const PoolWhere& where,
                          bool with_place);

torch::Tensor pool_largest_gradient_cuda(const torch::Tensor& dout,
                                         const torch::Tensor& known,
                                         const torch::Tensor& keep, int64_t tokens,
                                         const PoolWhere& where);

}  // namespace longspan
