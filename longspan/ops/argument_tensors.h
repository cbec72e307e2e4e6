// The arguments of a call and the tensors among them, apart.

#pragma once

#include <vector>

#include "longspan/ops/operator.h"

namespace longspan::ops {

class ArgumentTensors {
 public:
  explicit ArgumentTensors(Values values);

  // Restores what rest() and places() gave.
  ArgumentTensors(std::vector<c10::IValue> rest, std::vector<int64_t> places)
      : rest_(std::move(rest)), places_(std::move(places)) {}

  // Those that are defined, in the order of the schema; lists of tensors one by one.
  const std::vector<torch::Tensor>& tensors() const { return tensors_; }

  // The arguments without their tensors, and which argument each tensor is of.
  const std::vector<c10::IValue>& rest() const { return rest_; }
  const std::vector<int64_t>& places() const { return places_; }

  // The arguments with these as their tensors.
  std::vector<c10::IValue> with(const std::vector<torch::Tensor>& tensors) const;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<c10::IValue> rest_;
  std::vector<int64_t> places_;
};

}  // namespace longspan::ops
