// What is asked of `longspan bench kernels`.

#pragma once

#include <cstdint>
#include <string>

namespace longspan::cli {

struct KernelOptions {
  bool all = false, json = false;
  std::string only, device = "cpu";
  int64_t length = 0, turns = 7;
};

// The same on CUDA; only in builds that have it.
void bench_cuda_kernels(const KernelOptions& options);

}  // namespace longspan::cli
