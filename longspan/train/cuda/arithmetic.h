// How LibTorch computes on CUDA; not public.

#pragma once

namespace longspan::cuda {

struct Arithmetic {
  bool tf32 = false;
  bool deterministic = true;
};

// For the process. To be called before its first product of matrices.
void set_arithmetic(const Arithmetic& arithmetic);

}  // namespace longspan::cuda
