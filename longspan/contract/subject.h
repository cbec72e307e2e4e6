// A mechanism under examination, whatever seam it fills.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"

namespace longspan {

using Tensors = std::vector<torch::Tensor>;

// The small settings of a row.
Value::Map test_settings(const Mechanism& mechanism);

class Subject {
 public:
  struct Options {
    torch::Device device = torch::kCPU;
    torch::Dtype dtype = torch::kDouble;
    int64_t head_width = 8;
    bool grouped = true;                      // fewer heads of keys, where the row can
    int64_t seed = 1;                         // of the parameters
    std::optional<Value::Map> settings = {};  // else the test settings of the row
  };

  struct Output {
    torch::Tensor x = {};
    // [n]: the token each row of x stands for; a Stack may have fewer rows than tokens.
    torch::Tensor tokens = {};
    torch::Tensor side = {};  // as the mechanism left it, if it has a second stream
  };

  // With parameters away from their initial values, so that nothing is hidden behind a
  // zero.
  Subject(const Mechanism& mechanism, const Options& options);

  // What the seam takes: {q, k, v}, {q, v} where keys are queries, {v}, or {x}. The
  // axis of tokens is the last but one. `keys` < 0: as many as queries.
  Tensors inputs(int64_t examples, int64_t tokens, int64_t seed = 2,
                 int64_t keys = -1) const;

  // Gives a context of `keys` tokens; an Attention has its keys from inputs().
  void add_context(Pass& pass, int64_t examples, int64_t keys) const;

  // What the mechanism carries after some batches, which are always the same. What is
  // of the model is as training left it.
  Record carried(const Pass& pass, int64_t examples) const;

  // A mechanism with a second stream or a carry is given one, unless `pass` has it.
  Output run(const Tensors& inputs, Pass& pass) const;
  Output reference(const Tensors& inputs, Pass& pass) const;

  // The outputs, then the gradients of inputs and parameters under fixed random weights
  // of the output.
  Tensors run_and_gradients(const Tensors& inputs, Pass pass) const;
  Tensors reference_and_gradients(const Tensors& inputs, Pass pass) const;

  // As the mechanism tells it, without pairs where it does not.
  Sight sight(int64_t tokens, bool causal) const;

  // [tokens]: how early each token comes in the order of causality.
  torch::Tensor ranks(int64_t tokens) const;

  const Mechanism& mechanism() const { return mechanism_; }
  // With its settings.
  const Abilities& can() const;
  const Sizes& sizes() const { return sizes_; }
  const Settings& settings() const { return settings_; }
  torch::nn::Module& module() const;
  torch::TensorOptions tensor_options() const;

 private:
  enum class Form { fast, defined };

  bool is_attention() const {
    return std::holds_alternative<std::shared_ptr<Attention>>(part_);
  }
  torch::Tensor side(int64_t examples) const;
  Output compute(const Tensors& inputs, Pass& pass, Form form) const;
  Output compute_once(const Tensors& inputs, Pass& pass, Form form) const;
  Tensors with_gradients(const Tensors& inputs, Pass& pass, Form form) const;

  const Mechanism& mechanism_;
  Options options_;
  Sizes sizes_;
  Settings settings_;
  std::variant<std::shared_ptr<Attention>, std::shared_ptr<Mixer>,
               std::shared_ptr<FeedForward>, std::shared_ptr<Stack>>
      part_;
};

}  // namespace longspan
