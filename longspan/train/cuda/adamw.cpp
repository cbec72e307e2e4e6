#include "longspan/train/cuda/adamw.h"

#include "longspan/kernels/cuda/launch.h"

namespace longspan::cuda {
namespace {

int size_of(const auto& tensors) { return static_cast<int>(tensors.size()); }

}  // namespace

void collect_gradients(const std::vector<CollectedGradient>& tensors,
                       torch::Device device) {
  launch(device, "AdamW", [&](Stream stream) {
    return collect_gradients(tensors.data(), size_of(tensors), stream);
  });
}

torch::Tensor sum_of_squares(const std::vector<SquaredGradient>& tensors,
                             torch::Device device) {
  int64_t chunks = 0;
  for (const SquaredGradient& tensor : tensors)
    chunks += optimizer_chunks(tensor.count);
  const auto options = torch::TensorOptions(device).dtype(torch::kDouble);
  const torch::Tensor partial = torch::empty(chunks, options),
                      result = torch::empty({}, options);
  launch(device, "AdamW", [&](Stream stream) {
    return sum_of_squares(tensors.data(), size_of(tensors), partial.data_ptr<double>(),
                          result.data_ptr<double>(), stream);
  });
  return result;
}

void update_weights(const std::vector<UpdatedWeight>& tensors,
                    const AdamWNumbers& numbers, torch::Device device) {
  launch(device, "AdamW", [&](Stream stream) {
    return update_weights(tensors.data(), size_of(tensors), numbers, stream);
  });
}

}  // namespace longspan::cuda
