#include "longspan/data/dataset.h"

#include <algorithm>

namespace longspan {

Batch Batch::to(torch::Device device) const {
  const auto moved = [&](const torch::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/device.is_cuda());
  };
  return {.ids = moved(ids),
          .tokens = moved(tokens),
          .labels = moved(labels),
          .targets = moved(targets),
          .segments = moved(segments),
          .kinds = moved(kinds),
          .real_tokens = real_tokens,
          .answers = answers};
}

int64_t Dataset::longest() const {
  int64_t longest = 0;
  for (int64_t i = 0; i < size(); ++i) longest = std::max(longest, length(i));
  return longest;
}

}  // namespace longspan
