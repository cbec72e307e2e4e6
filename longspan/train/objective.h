// What a trainer drives: a model, examples, and a loss.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <torch/nn/module.h>

#include "longspan/attention/pass.h"
#include "longspan/data/examples.h"
#include "longspan/models/classifier.h"
#include "longspan/tasks/task.h"

namespace longspan {

// Sums over a batch, on its device.
struct BatchSums {
  torch::Tensor loss;   // scalar, differentiable
  torch::Tensor right;  // scalar: how many answers were right
};

class Objective {
 public:
  virtual ~Objective() = default;

  virtual torch::nn::Module& model() = 0;
  // The examples of "train", "valid" or "test".
  virtual const Examples& examples(std::string_view split) const = 0;
  virtual BatchSums evaluate(const Batch& batch, Pass& pass) = 0;
};

// Cross-entropy of a classifier. Both must outlive it.
class Classification final : public Objective {
 public:
  Classification(const Task& task, Classifier& model) : task_(task), model_(model) {}

  torch::nn::Module& model() override { return model_; }
  const Examples& examples(std::string_view split) const override {
    return task_.split(split);
  }
  BatchSums evaluate(const Batch& batch, Pass& pass) override;

 private:
  const Task& task_;
  Classifier& model_;
};

}  // namespace longspan
