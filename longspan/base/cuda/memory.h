// What memory.cpp asks of LibTorch's allocator for CUDA; not public.

#pragma once

#include <cstdint>

#include <torch/types.h>

namespace longspan::cuda {

// Lets the peak of `device` start again; returns the bytes of tensors that live on it.
int64_t start_peak(torch::Device device);

// The most bytes of tensors that lived at once since.
int64_t peak(torch::Device device);

}  // namespace longspan::cuda
