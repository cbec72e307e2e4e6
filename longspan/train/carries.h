// What a training keeps from batch to batch of what mechanisms carry: of the examples
// of each of the passes that a step consists of, and of the model.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "longspan/attention/mechanism.h"
#include "longspan/base/tensor_file.h"

namespace longspan {

class Carries {
 public:
  explicit Carries(Carry kind) : kind_(kind) {}

  // What `passes` passes of a step are given. Where streams of examples begin, nothing
  // is carried of them.
  std::vector<Record> given(size_t passes, bool begins) const;

  // What the passes of a step left, and their weights, which add up to 1.
  void take(const std::vector<Record>& left, const std::vector<double>& weights);

  // What evaluation reads of the model, or null.
  const Record* of_model() const;

  // Of the model, to be kept with its weights; and what else training needs.
  NamedTensors saved_with_model() const;
  NamedTensors saved_with_optimizer() const;
  void load(const NamedTensors& model, const NamedTensors& optimizer,
            torch::Device device);

  // Whether what is carried of examples, if anything, is of so many in each pass.
  bool fits(const std::vector<int64_t>& examples) const;
  void forget_examples() { examples_.clear(); }

 private:
  using Tensors = std::map<std::string, torch::Tensor>;

  Carry kind_;
  Tensors means_, rows_;           // of the model
  std::vector<Tensors> examples_;  // of each pass
  Record of_model_;
};

// What a model carries, of the tensors that are kept with its weights.
Record carry_of_model(const NamedTensors& weights, torch::Device device);
bool is_carried(const std::string& name);

}  // namespace longspan
