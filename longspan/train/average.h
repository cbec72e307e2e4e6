// Averages of the weights over training, often better than the last ones.

#pragma once

#include <deque>
#include <vector>

#include <torch/types.h>

#include "longspan/base/tensor_file.h"
#include "longspan/train/adamw.h"

namespace longspan {

enum class Averaging {
  none,
  ema,   // decays exponentially, a little at every step
  last,  // the mean of the last few notes
};

// The bits do not depend on the number of threads.
class WeightAverage {
 public:
  WeightAverage(Averaging kind, double decay, int64_t notes)
      : kind_(kind), decay_(decay), notes_(notes) {}

  void after_step(const NamedParameters& parameters);  // for ema
  void note(const NamedParameters& parameters);        // for last

  // The averages, in the order of the parameters; empty if there are none yet.
  std::vector<torch::Tensor> weights() const;

  NamedTensors saved(const NamedParameters& parameters) const;
  void load(const NamedTensors& saved, const NamedParameters& parameters);

 private:
  Averaging kind_;
  double decay_;
  int64_t notes_;
  std::deque<std::vector<torch::Tensor>> kept_;  // of ema one
};

}  // namespace longspan
