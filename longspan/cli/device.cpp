#include "longspan/cli/device.h"

#include <torch/cuda.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"

namespace longspan::cli {

torch::Device usable_device(const std::string& name) {
  require(name == "cpu" || name == "cuda", "--device must be cpu or cuda, got ", name);
  require(name == "cpu" || (kHasCuda && torch::cuda::is_available()),
          "--device cuda: this build or machine has no CUDA; see longspan info");
  return name == "cpu" ? torch::Device(torch::kCPU) : torch::Device(torch::kCUDA, 0);
}

}  // namespace longspan::cli
