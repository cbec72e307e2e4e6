#include "longspan/train/carries.h"

#include <algorithm>

namespace longspan {
namespace {

using torch::Tensor;

const std::string kCarry = "carry.", kAllRows = "carry.rows.";

// Of what the examples of one pass carry.
std::string prefix_of(size_t pass) { return kCarry + std::to_string(pass) + "."; }

NamedTensors with_prefix(const std::map<std::string, Tensor>& tensors,
                         const std::string& prefix) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors) named[prefix + name] = tensor;
  return named;
}

std::map<std::string, Tensor> behind(const std::string& prefix,
                                     const NamedTensors& named, torch::Device device) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : named)
    if (name.starts_with(prefix))
      tensors[name.substr(prefix.size())] = tensor.to(device);
  return tensors;
}

}  // namespace

std::vector<Record> Carries::given(size_t passes, bool begins) const {
  const bool goes_on = examples_.size() == passes && !begins;
  std::vector<Record> records;
  for (size_t pass = 0; pass < passes; ++pass) {
    Tensors all = goes_on ? examples_[pass] : Tensors();
    all.insert(means_.begin(), means_.end());
    all.insert(rows_.begin(), rows_.end());
    records.push_back(Record::restored(all));
  }
  return records;
}

void Carries::take(const std::vector<Record>& left,
                   const std::vector<double>& weights) {
  means_.clear();
  examples_.clear();
  std::map<std::string, std::vector<Tensor>> rows;
  for (size_t pass = 0; pass < left.size(); ++pass) {
    Tensors examples;
    for (const auto& [name, tensor] : left[pass].saved()) {
      if (name.ends_with(kRows)) {
        rows[name].push_back(tensor);
      } else if (name.ends_with(kMean)) {
        const Tensor part = tensor * weights[pass];
        Tensor& mean = means_[name];
        mean = mean.defined() ? mean + part : part;
      } else {
        examples[name] = tensor;
      }
    }
    if (is_of_examples(kind_)) examples_.push_back(examples);
  }
  rows_.clear();
  for (const auto& [name, parts] : rows) rows_[name] = torch::cat(parts);
  of_model_ = Record::restored(means_);
}

const Record* Carries::of_model() const {
  return means_.empty() ? nullptr : &of_model_;
}

NamedTensors Carries::saved_with_model() const { return with_prefix(means_, kCarry); }

NamedTensors Carries::saved_with_optimizer() const {
  NamedTensors all = with_prefix(rows_, kAllRows);
  for (size_t pass = 0; pass < examples_.size(); ++pass)
    all.merge(with_prefix(examples_[pass], prefix_of(pass)));
  return all;
}

void Carries::load(const NamedTensors& model, const NamedTensors& optimizer,
                   torch::Device device) {
  means_ = behind(kCarry, model, device);
  rows_ = behind(kAllRows, optimizer, device);
  of_model_ = Record::restored(means_);
  examples_.clear();
  while (true) {
    const Tensors found = behind(prefix_of(examples_.size()), optimizer, device);
    if (found.empty()) break;
    examples_.push_back(found);
  }
}

bool Carries::fits(const std::vector<int64_t>& examples) const {
  if (examples_.empty()) return true;
  if (examples_.size() != examples.size()) return false;
  for (size_t pass = 0; pass < examples.size(); ++pass)
    for (const auto& [name, tensor] : Record::restored(examples_[pass]).all())
      if (tensor.size(0) != examples[pass]) return false;
  return true;
}

Record carry_of_model(const NamedTensors& weights, torch::Device device) {
  return Record::restored(behind(kCarry, weights, device));
}

bool is_carried(const std::string& name) { return name.starts_with(kCarry); }

}  // namespace longspan
