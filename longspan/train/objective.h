// What a trainer drives: a model, examples, and a loss.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "longspan/attention/mechanism.h"
#include "longspan/data/dataset.h"
#include "longspan/models/classifier.h"
#include "longspan/models/language_model.h"
#include "longspan/tasks/task.h"
#include "longspan/train/training_state.h"

namespace longspan {

// Sums over the answers of a batch, on its device.
struct BatchSums {
  torch::Tensor loss;   // scalar, differentiable
  torch::Tensor right;  // scalar: how many answers were right
};

// Names of what a score means in the terms of a task, and the numbers.
using Measures = std::vector<std::pair<std::string, double>>;

class Objective {
 public:
  virtual ~Objective() = default;

  virtual torch::nn::Module& model() = 0;
  // The examples of "train", "valid" or "test".
  virtual const Dataset& examples(std::string_view split) const = 0;
  virtual BatchSums evaluate(const Batch& batch, Pass& pass) = 0;

  // The same by the mean of the probabilities of several passes like `pass`, which
  // differ in what mechanisms draw.
  virtual BatchSums evaluate_mean(const Batch& batch, const Pass& pass,
                                  int64_t passes) = 0;

  // What the model keeps from batch to batch. Where it is of examples, these come in
  // streams.
  virtual Carry carry() const { return Carry::none; }
  // Whether passes differ in what mechanisms draw where pass.sampling is set.
  virtual bool samples() const { return false; }
  // What is best where the options do not say: the least loss, or the most accuracy.
  virtual bool judges_by_loss() const { return false; }
  virtual Measures measures(const Dataset& examples, const Score& score) const {
    (void)examples, (void)score;
    return {};
  }
};

// Cross-entropy of a classifier. Both must outlive it.
class Classification final : public Objective {
 public:
  Classification(const Task& task, Classifier& model) : task_(task), model_(model) {}

  torch::nn::Module& model() override { return model_; }
  const Dataset& examples(std::string_view split) const override {
    return task_.split(split);
  }
  BatchSums evaluate(const Batch& batch, Pass& pass) override;
  BatchSums evaluate_mean(const Batch& batch, const Pass& pass,
                          int64_t passes) override;
  Carry carry() const override { return model_.carry(); }
  bool samples() const override { return model_.samples(); }

 private:
  const Task& task_;
  Classifier& model_;
};

// Cross-entropy of the targets of a language model, next or hidden tokens. Both must
// outlive it.
class LanguageModelling final : public Objective {
 public:
  LanguageModelling(const Task& task, LanguageModel& model);

  torch::nn::Module& model() override { return model_; }
  const Dataset& examples(std::string_view split) const override {
    return task_.split(split);
  }
  BatchSums evaluate(const Batch& batch, Pass& pass) override;
  BatchSums evaluate_mean(const Batch& batch, const Pass& pass,
                          int64_t passes) override;
  Carry carry() const override { return model_.carry(); }
  bool samples() const override { return model_.samples(); }
  bool judges_by_loss() const override { return true; }
  // Perplexity; per word and bits per byte where the text is known by them.
  Measures measures(const Dataset& examples, const Score& score) const override;

 private:
  const Task& task_;
  LanguageModel& model_;
};

}  // namespace longspan
