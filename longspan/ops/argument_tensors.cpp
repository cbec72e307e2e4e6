#include "longspan/ops/argument_tensors.h"

namespace longspan::ops {

using torch::Tensor;

ArgumentTensors::ArgumentTensors(Values values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    std::vector<Tensor> here;
    if (value.isTensor()) here.push_back(value.toTensor());
    if (value.isTensorList()) here = value.toTensorVector();
    for (Tensor& tensor : here) {
      if (!tensor.defined()) continue;
      tensors_.push_back(std::move(tensor));
      places_.push_back(static_cast<int64_t>(i));
    }
    if (value.isTensorList())
      rest_.emplace_back(std::vector<Tensor>());
    else
      rest_.push_back(value.isTensor() ? c10::IValue() : value);
  }
}

std::vector<c10::IValue> ArgumentTensors::with(
    const std::vector<Tensor>& tensors) const {
  std::vector<std::vector<Tensor>> lists(rest_.size());
  for (size_t i = 0; i < tensors.size(); ++i) lists[places_[i]].push_back(tensors[i]);
  std::vector<c10::IValue> values = rest_;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensorList())
      values[i] = lists[i];
    else if (!lists[i].empty())
      values[i] = lists[i].front();
  }
  return values;
}

}  // namespace longspan::ops
