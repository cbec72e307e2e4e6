// What every kernel needs that is launched on tensors; not public.

#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

// Of a float, double, bfloat16 or half tensor.
Type cuda_type(const torch::Tensor& tensor);

// Null where the tensor is undefined.
inline void* data_of(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

// The stream that LibTorch works on.
Stream current_stream(const torch::Device& device);

// Throws where `error`, a cudaError_t, is not 0. `name`: what was launched.
void check_launch(int error, const char* name);

// work(stream), which returns a cudaError_t, with `device` being the current one.
template <class Work>
void launch(const torch::Device& device, const char* name, const Work& work) {
  const c10::DeviceGuard guard(device);
  check_launch(work(current_stream(device)), name);
}

}  // namespace longspan::cuda
