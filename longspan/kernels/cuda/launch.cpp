#include "longspan/kernels/cuda/launch.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "longspan/base/error.h"

namespace longspan::cuda {

Type cuda_type(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kDouble: return Type::kDouble;
    case torch::kFloat: return Type::kFloat;
    case torch::kHalf: return Type::kHalf;
    case torch::kBFloat16: return Type::kBFloat16;
    default:
      fail("CUDA kernels: numbers must be float, double, bfloat16 or half, got ",
           tensor.scalar_type());
  }
}

Stream current_stream(const torch::Device& device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

void check_launch(int error, const char* name) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next launch would be blamed
  const auto code = static_cast<cudaError_t>(error);
  fail(name, ": the CUDA kernel could not be launched: ", cudaGetErrorString(code),
       " (", cudaGetErrorName(code), ")");
}

}  // namespace longspan::cuda
