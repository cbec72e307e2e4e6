// A mechanism under examination, whatever seam it fills.

#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"

namespace longspan {

using Tensors = std::vector<torch::Tensor>;

class Subject {
 public:
  struct Options {
    torch::Device device = torch::kCPU;
    torch::Dtype dtype = torch::kDouble;
    int64_t head_width = 8;
    int64_t seed = 1;  // of the parameters
  };

  // With the test settings of the row and parameters away from their initial values, so
  // that nothing is hidden behind a zero.
  Subject(const Mechanism& mechanism, const Options& options);

  // {q, k, v}, or {x}: the axis of tokens is the last but one. `keys` < 0: as many as
  // queries.
  Tensors inputs(int64_t examples, int64_t tokens, int64_t seed = 2,
                 int64_t keys = -1) const;

  torch::Tensor run(const Tensors& inputs, Pass& pass) const;
  torch::Tensor reference(const Tensors& inputs, Pass& pass) const;

  // The output, then the gradients of inputs and parameters under fixed random weights
  // of the output.
  Tensors run_and_gradients(const Tensors& inputs, Pass pass) const;
  Tensors reference_and_gradients(const Tensors& inputs, Pass pass) const;

  const Mechanism& mechanism() const { return mechanism_; }
  const Sizes& sizes() const { return sizes_; }
  const Settings& settings() const { return settings_; }
  torch::nn::Module& module() const;
  torch::TensorOptions tensor_options() const;

 private:
  template <class Compute>
  Tensors with_gradients(const Tensors& inputs, Pass& pass, Compute compute) const;

  const Mechanism& mechanism_;
  Options options_;
  Sizes sizes_;
  Settings settings_;
  std::variant<std::shared_ptr<Attention>, std::shared_ptr<Mixer>,
               std::shared_ptr<FeedForward>, std::shared_ptr<Stack>>
      part_;
};

}  // namespace longspan
