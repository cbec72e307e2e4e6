#include "longspan/ops/derivative.h"

#include <algorithm>
#include <memory>

#include <torch/csrc/autograd/autograd.h>

#include "longspan/base/error.h"
#include "longspan/ops/argument_tensors.h"
#include "longspan/ops/stack.h"

namespace longspan::ops {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;

constexpr size_t kSlopesArguments = 3;

Slopes read_slopes(Values values) {
  Slopes given{values[0].toTensorVector(), values[1].toTensorVector(), {}};
  for (const bool wanted : values[2].toBoolList()) given.wanted.push_back(wanted);
  return given;
}

// The floating tensors whose gradients are wanted.
variable_list wanted_of(const variable_list& tensors, const std::vector<bool>& wanted) {
  variable_list some;
  size_t floating = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor.is_floating_point()) continue;
    if (floating < wanted.size() && wanted[floating]) some.push_back(tensor);
    ++floating;
  }
  require(floating == wanted.size(), "wanted must be of ", floating,
          " floating tensors, got ", wanted.size());
  return some;
}

// Lets autograd see operations again, which it does not inside a kernel.
class SeenByAutograd {
  static c10::impl::LocalDispatchKeySet keys() {
    auto all = c10::impl::tls_local_dispatch_key_set();
    all.excluded_ = all.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return all;
  }

  c10::impl::ForceDispatchKeyGuard keys_{keys()};
  torch::AutoGradMode mode_{true};
};

variable_list run_again(const Operator& definition, Values values,
                        const Slopes& given) {
  const SeenByAutograd seen;
  const ArgumentTensors arguments(values);
  variable_list copies, sought;
  size_t number = 0;
  for (const Tensor& tensor : arguments.tensors()) {
    copies.push_back(tensor.detach());
    if (!tensor.is_floating_point() || !given.wanted[number++]) continue;
    sought.push_back(copies.back().requires_grad_());
  }
  const Stack again = arguments.with(copies);
  const variable_list results = definition.run(Arguments(again));
  require(given.slopes.size() == results.size(), definition.name,
          ": there must be gradients of ", results.size(), " results, got ",
          given.slopes.size());
  variable_list reached, slopes;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad()) continue;
    reached.push_back(results[i]);
    slopes.push_back(given.slopes[i]);
  }
  variable_list gradients(sought.size());
  if (!reached.empty())
    gradients = torch::autograd::grad(reached, sought, slopes, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < sought.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = torch::zeros_like(sought[i]);
  return gradients;
}

struct RunGradient : c10::OperatorKernel {
  explicit RunGradient(const Operator& given) : definition(given) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  Stack* stack) const {
    const torch::NoGradGuard no_grad;
    const Values all = arguments_of(handle, stack);
    const Values values = all.slice(kSlopesArguments);
    const Slopes given = read_slopes(all);
    const ArgumentTensors arguments(values);
    wanted_of(arguments.tensors(), given.wanted);  // fits
    variable_list gradients;
    if (definition.gradient &&
        definition.has_gradient(arguments.tensors().front().device())) {
      gradients = definition.gradient(Arguments(values), given);
      std::erase_if(gradients, [](const Tensor& x) { return !x.defined(); });
    } else {
      gradients = run_again(definition, values, given);
    }
    answer(handle, stack, std::vector<variable_list>{dense(std::move(gradients))});
  }

  Operator definition;
};

void gradient_shapes(const c10::OperatorHandle& handle, Stack* stack) {
  const Values values = arguments_of(handle, stack);
  const Slopes given = read_slopes(values);
  variable_list gradients = wanted_of(
      ArgumentTensors(values.slice(kSlopesArguments)).tensors(), given.wanted);
  for (Tensor& tensor : gradients)
    tensor = at::empty_symint(tensor.sym_sizes(), tensor.options());
  answer(handle, stack, std::vector<variable_list>{std::move(gradients)});
}

void refuse_second_gradient(const c10::OperatorHandle& handle, Stack* stack) {
  const ArgumentTensors arguments(arguments_of(handle, stack));
  const bool asked = torch::GradMode::is_enabled() &&
                     std::ranges::any_of(arguments.tensors(), [](const Tensor& tensor) {
                       return tensor.requires_grad();
                     });
  require(!asked, handle.operator_name().name,
          ": it has no derivative, so there are no second derivatives");
  call_below_autograd(handle, stack);
}

}  // namespace

torch::CppFunction gradient_kernel(const Operator& definition) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<RunGradient>(definition));
}

torch::CppFunction gradient_shapes_kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&gradient_shapes>();
}

torch::CppFunction no_second_gradient_kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse_second_gradient>();
}

}  // namespace longspan::ops
