// How LibTorch computes on CUDA; not public.

#pragma once

#include <string>

namespace longspan::cuda {

struct Arithmetic {
  bool tf32 = false;
  bool deterministic = true;
};

// For the process. To be called before its first product of matrices.
void set_arithmetic(const Arithmetic& arithmetic);

// Of the GPU in use: "NVIDIA H200".
std::string device_name();

}  // namespace longspan::cuda
