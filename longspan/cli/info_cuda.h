// What `longspan info` says of the GPU.

#pragma once

#include <string>

namespace longspan::cli {

struct CudaFacts {
  std::string name;
  int architecture = 0;              // 90 is sm_90
  bool has_wgmma = false;            // whether the build has kernels with it
  bool torch_has_attention = false;  // that we use

  bool is_served() const { return architecture >= 80; }
  bool uses_wgmma() const { return has_wgmma && architecture == 90; }
};

// Of the current device; only in builds with CUDA.
CudaFacts cuda_facts();

}  // namespace longspan::cli
