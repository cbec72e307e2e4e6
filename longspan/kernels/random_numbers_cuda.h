// Random words, and dropout, on CUDA without autograd.

#pragma once

#include <vector>

#include <torch/types.h>

#include "longspan/base/random.h"

namespace longspan {

// The counters are broadcast to one shape.
torch::Tensor philox_words_cuda(Key key, const std::vector<torch::Tensor>& counters);

torch::Tensor random_words_cuda(Key key, at::IntArrayRef shape, torch::Device device);

torch::Tensor dropout_cuda(const torch::Tensor& x, double probability, Key key);

}  // namespace longspan
