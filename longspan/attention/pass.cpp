#include "longspan/attention/pass.h"

namespace longspan {

torch::Tensor Record::get(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? torch::Tensor() : found->second;
}

void Record::set(std::string_view name, torch::Tensor value) {
  tensors_.insert_or_assign(std::string(name), std::move(value));
}

Record& Record::part(std::string_view name) {
  return parts_.try_emplace(std::string(name)).first->second;
}

std::map<std::string, torch::Tensor> Record::all() const {
  std::map<std::string, torch::Tensor> tensors(tensors_.begin(), tensors_.end());
  for (const auto& [name, part] : parts_)
    for (const auto& [inner, tensor] : part.all())
      tensors.emplace(name + "." + inner, tensor);
  return tensors;
}

int64_t Record::numel() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : all()) total += tensor.numel();
  return total;
}

void Record::select(const torch::Tensor& examples) {
  for (auto& [name, tensor] : tensors_)
    tensor = tensor.index_select(0, examples.to(tensor.device(), torch::kLong));
  for (auto& [name, part] : parts_) part.select(examples);
}

void Pass::add_loss(const std::string& name, const torch::Tensor& loss) {
  const auto [found, is_new] = losses.try_emplace(name, loss);
  if (!is_new) found->second = found->second + loss;
}

}  // namespace longspan
