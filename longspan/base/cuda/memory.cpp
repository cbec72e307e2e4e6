#include "longspan/base/cuda/memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

namespace longspan::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

c10::DeviceIndex index_of(torch::Device device) {
  return device.has_index() ? device.index() : c10::cuda::current_device();
}

// What was asked for: a tensor may be given a larger block that happened to be free.
const auto& tensor_bytes(const auto& stats) {
  if constexpr (requires { stats.requested_bytes; })
    return stats.requested_bytes[0];
  else  // LibTorch before 2.1
    return stats.allocated_bytes[0];
}

}  // namespace

int64_t start_peak(torch::Device device) {
  torch::empty({1}, device);  // the allocator has no figures before its first tensor
  allocator::resetPeakStats(index_of(device));
  return tensor_bytes(allocator::getDeviceStats(index_of(device))).current;
}

int64_t peak(torch::Device device) {
  return tensor_bytes(allocator::getDeviceStats(index_of(device))).peak;
}

}  // namespace longspan::cuda
