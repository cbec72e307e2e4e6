// How a function of the library becomes an operator of LibTorch.
//
// Kernels are boxed: they take their arguments as a list, in the order of the schema.
// So the schema names the arguments once and Arguments reads them once, for results,
// shapes and derivative alike.

#pragma once

#include <string>
#include <vector>

#include <torch/library.h>
#include <torch/types.h>

namespace longspan::ops {

using Values = at::ArrayRef<c10::IValue>;

// Reads the arguments of a call, one after the other.
class Arguments {
 public:
  explicit Arguments(Values values) : values_(values) {}

  const c10::IValue& next() { return values_[at_++]; }

  // Undefined for None.
  torch::Tensor tensor();

  template <class Value>
  auto optional() {
    return next().toOptional<Value>();
  }

 private:
  Values values_;
  size_t at_ = 0;
};

// Of a result.
struct Shape {
  std::vector<c10::SymInt> sizes;
  torch::Dtype dtype;
};

// The tensors that are given to a derivative beside the arguments of the operator.
struct Slopes {
  std::vector<torch::Tensor> results;  // of the operator
  std::vector<torch::Tensor> slopes;   // of the results
  std::vector<bool> wanted;            // for each floating tensor among the arguments
};

struct Operator {
  std::string name, arguments, results;  // as in the schema

  // All results are defined. Runs without autograd.
  std::vector<torch::Tensor> (*run)(Arguments);

  // The same from shapes and types alone, which torch.compile traces with: tensors may
  // have symbolic sizes and no memory.
  std::vector<Shape> (*shapes)(Arguments);

  // The gradient of every floating tensor among the arguments, undefined where not
  // wanted, on devices where `has_gradient`. On others, and where both are null, `run`
  // runs again with autograd: it costs its time once more and keeps nothing between the
  // passes.
  std::vector<torch::Tensor> (*gradient)(Arguments, const Slopes&) = nullptr;
  bool (*has_gradient)(torch::Device) = nullptr;

  size_t constant_results = 0;  // the last so many have no gradient
  bool is_constant = false;     // no result has one: there is no derivative
};

// Defines the operator, and NAME_backward, its derivative: an operator itself, so that
// torch.compile can trace training.
void define(torch::Library& library, const Operator& definition);

// Of what results are computed in: double for double, float for the others.
torch::Dtype precise(torch::Dtype dtype);

// A result that there is not.
torch::Tensor nothing(const torch::Tensor& like);

// Some tensor has sizes that are not numbers yet.
bool is_symbolic(const std::vector<torch::Tensor>& tensors);

}  // namespace longspan::ops
