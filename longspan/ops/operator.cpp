#include "longspan/ops/operator.h"

#include <algorithm>
#include <memory>

#include "longspan/base/error.h"
#include "longspan/ops/argument_tensors.h"
#include "longspan/ops/derivative.h"
#include "longspan/ops/stack.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

struct Run : c10::OperatorKernel {
  explicit Run(const Operator& given) : definition(given) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  Stack* stack) const {
    const torch::NoGradGuard no_grad;
    answer(handle, stack,
           dense(definition.run(Arguments(arguments_of(handle, stack)))));
  }

  Operator definition;
};

struct RunShapes : c10::OperatorKernel {
  explicit RunShapes(const Operator& given) : definition(given) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  Stack* stack) const {
    const Values values = arguments_of(handle, stack);
    const std::vector<Tensor> tensors = ArgumentTensors(values).tensors();
    std::vector<Tensor> results;
    for (const auto& [sizes, dtype] : definition.shapes(Arguments(values)))
      results.push_back(
          at::empty_symint(sizes, tensors.front().options().dtype(dtype)));
    answer(handle, stack, results);
  }

  Operator definition;
};

}  // namespace

Tensor Arguments::tensor() {
  const c10::IValue& value = next();
  return value.isNone() ? Tensor() : value.toTensor();
}

void define(torch::Library& library, const Operator& definition) {
  const std::string &name = definition.name, &arguments = definition.arguments;
  require((definition.gradient == nullptr) == (definition.has_gradient == nullptr),
          name, ": an operator must have gradient and has_gradient, or neither, got ",
          definition.gradient ? "gradient" : "has_gradient", " alone");
  const std::string schema = name + "(" + arguments + ") -> " + definition.results;
  library.def(schema.c_str());

  const auto implement = [&](const std::string& which, c10::DispatchKey key,
                             torch::CppFunction kernel) {
    library.impl(which.c_str(), torch::dispatch(key, std::move(kernel)));
  };
  const auto boxed = []<class Kernel>(std::unique_ptr<Kernel> kernel) {
    return torch::CppFunction::makeFromBoxedFunctor(std::move(kernel));
  };
  using c10::DispatchKey;
  constexpr auto kAnyDevice = DispatchKey::CompositeExplicitAutograd;
  implement(name, kAnyDevice, boxed(std::make_unique<Run>(definition)));
  implement(name, DispatchKey::Meta, boxed(std::make_unique<RunShapes>(definition)));
  if (definition.is_constant) {
    implement(name, DispatchKey::Autograd,
              torch::CppFunction::makeFromBoxedFunction<&call_below_autograd>());
    return;
  }

  const std::string backward = name + "_backward";
  const std::string backward_schema =
      backward + "(" + kSlopesSchema + arguments + ") -> Tensor[]";
  library.def(backward_schema.c_str());
  implement(name, DispatchKey::Autograd, autograd_kernel(definition));
  implement(backward, kAnyDevice, gradient_kernel(definition));
  implement(backward, DispatchKey::Meta, gradient_shapes_kernel());
  implement(backward, DispatchKey::Autograd, no_second_gradient_kernel());
}

torch::Dtype precise(torch::Dtype dtype) {
  return dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor nothing(const Tensor& like) { return like.new_empty({0}); }

bool is_symbolic(const std::vector<Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const Tensor& tensor) {
    return tensor.defined() &&
           tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  });
}

}  // namespace longspan::ops
