#include "longspan/cli/info_cuda.h"

#include <cuda_runtime_api.h>

#include "longspan/base/error.h"
#include "longspan/kernels/cuda/hopper.h"
#include "longspan/kernels/torch_attention.h"

namespace longspan::cli {

CudaFacts cuda_facts() {
  int device = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  require(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error));
  return {.name = properties.name,
          .architecture = 10 * properties.major + properties.minor,
          .has_wgmma = cuda::hopper_is_built(),
          .torch_has_attention = kTorchHasAttention};
}

}  // namespace longspan::cli
