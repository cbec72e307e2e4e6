// What `longspan bench kernels --device cuda` measures.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/cli/kernel_cases.h"
#include "longspan/cli/plain_attention.h"

namespace longspan::cli {

using CudaStep = std::function<Tensors()>;

// What a kernel is compared with. `make` throws where it cannot be made.
struct Contender {
  std::string name;
  std::function<CudaStep()> make;
  Target target = {};
  double scale = 1;    // makes the ratio of times one of speeds, where work differs
  bool alike = false;  // computes the same values
};

struct CudaWork {
  CudaStep ours;
  std::vector<Contender> contenders;
  double flop = 0;   // of visible pairs; 0: not counted
  double bytes = 0;  // moved; 0: not counted
};

struct CudaCase {
  std::string name;
  std::vector<std::string> contenders;  // every name there may be
  std::function<CudaWork()> prepare;    // its tensors live only while it is measured
};

// What there are targets for, and what belongs beside them. `length` replaces that of
// every case unless it is 0.
std::vector<CudaCase> main_cuda_cases(int64_t length);

// Other lengths, widths and types.
std::vector<CudaCase> sweep_cuda_cases(int64_t length);

}  // namespace longspan::cli
