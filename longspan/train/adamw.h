// Adam with decoupled weight decay. Loshchilov & Hutter 2019, arXiv:1711.05101. With
// weights in float beside parameters in bfloat16: Micikevicius et al. 2018,
// arXiv:1710.03740.

#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "longspan/base/tensor_file.h"
#include "longspan/base/value.h"

namespace longspan {

using NamedParameters = std::vector<std::pair<std::string, torch::Tensor>>;

NamedParameters named_parameters(const torch::nn::Module& module);

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-9;
  double weight_decay = 0;
  bool decay_vectors = false;  // also biases, norms and other vectors
  // Exceptions, the last that fits counting: [{match: "*norm*", weight_decay: 0, rate:
  // 0.1}]; rate is a factor of the learning rate.
  Value groups = Value::List{};
};

// p <- p - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
//        - rate * weight_decay * p,  t = 1, 2, ..
// The bits do not depend on the number of threads. On CUDA all parameters are updated
// by a few launches, with the bits of the CPU.
//
// Parameters in bfloat16 are rounded weights in float: these, their moments and the
// sums of gradients over several backward passes are kept here.
class AdamW {
 public:
  AdamW(const NamedParameters& parameters, const AdamWOptions& options);

  // What is updated: in float for parameters in bfloat16, else the parameters.
  const NamedParameters& weights() const { return weights_; }

  // Gives the parameters the values of weights(), for those who have changed these.
  void round_weights();

  // After a backward pass when another comes before the step: moves the gradients of
  // parameters in bfloat16 into sums in float. Those of others add up by themselves.
  void collect_gradients();

  void clear_gradients();

  // The sum of the squares of all gradients, scalar, double; undefined if no parameter
  // has a gradient.
  torch::Tensor gradient_square();

  // One update with the gradients of the parameters, each times `scale`. A parameter
  // without a gradient stays as it is.
  void step(double rate, double scale = 1);

  int64_t steps() const { return steps_; }

  // The moments by name, for a checkpoint, and back. load() refuses missing names and
  // other shapes.
  NamedTensors saved() const;
  void load(const NamedTensors& saved, int64_t steps);

 private:
  struct One {
    std::string name;
    torch::Tensor parameter, weight;
    torch::Tensor sum = {};       // of gradients, where weight is not the parameter
    torch::Tensor first, second;  // moments
    double weight_decay = 0, rate = 1;
    int64_t version = 0;  // of the parameter when it was rounded last

    bool is_rounded() const { return !parameter.is_same(weight); }
    torch::Tensor gradient() const { return is_rounded() ? sum : parameter.grad(); }
  };

  void follow_parameters();

  AdamWOptions options_;
  std::vector<One> all_;
  NamedParameters weights_;
  int64_t steps_ = 0;
};

// Whether a name fits a pattern in which * stands for any letters.
bool fits(std::string_view name, std::string_view pattern);

}  // namespace longspan
