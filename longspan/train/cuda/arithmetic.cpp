#include "longspan/train/cuda/arithmetic.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <cuda_runtime_api.h>

#include "longspan/base/error.h"

namespace longspan::cuda {

void set_arithmetic(const Arithmetic& arithmetic) {
  // cuBLAS reads it once; some versions of LibTorch refuse to be deterministic without.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  auto& context = at::globalContext();
  context.setAllowTF32CuBLAS(arithmetic.tf32);
  context.setAllowTF32CuDNN(arithmetic.tf32);
  // Products of short numbers are added up in float all the way.
  context.setAllowBF16ReductionCuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setDeterministicAlgorithms(arithmetic.deterministic, /*warn_only=*/false);
  // Else every new tensor would be filled first.
  context.setDeterministicFillUninitializedMemory(false);
}

std::string device_name() {
  int device = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  require(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error));
  return properties.name;
}

}  // namespace longspan::cuda
