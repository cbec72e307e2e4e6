// What adamw.cpp asks of the CUDA kernels; not public. The tensors are on `device`.

#pragma once

#include <vector>

#include <torch/types.h>

#include "longspan/kernels/cuda/adamw.h"

namespace longspan::cuda {

void collect_gradients(const std::vector<CollectedGradient>& tensors,
                       torch::Device device);

// Scalar, double.
torch::Tensor sum_of_squares(const std::vector<SquaredGradient>& tensors,
                             torch::Device device);

void update_weights(const std::vector<UpdatedWeight>& tensors,
                    const AdamWNumbers& numbers, torch::Device device);

}  // namespace longspan::cuda
