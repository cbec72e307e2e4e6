#include <memory>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/ops/argument_tensors.h"
#include "longspan/ops/derivative.h"
#include "longspan/ops/stack.h"

namespace longspan::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class OperatorFunction : public torch::autograd::Function<OperatorFunction> {
 public:
  // `tensors` are those of `arguments`.
  static variable_list forward(AutogradContext* context,
                               const c10::OperatorHandle& handle,
                               const Operator& definition,
                               const ArgumentTensors& arguments,
                               at::TensorList tensors) {
    Stack stack = arguments.with(tensors.vec());
    call_below_autograd(handle, &stack);
    variable_list results;
    for (const c10::IValue& result : stack) results.push_back(result.toTensor());

    variable_list kept = tensors.vec();
    if (definition.gradient) kept.insert(kept.end(), results.begin(), results.end());
    context->save_for_backward(kept);
    context->saved_data["operator"] = handle.operator_name().name;
    context->saved_data["rest"] = c10::ivalue::Tuple::create(arguments.rest());
    context->saved_data["places"] = arguments.places();
    context->mark_non_differentiable(
        {results.end() - static_cast<int64_t>(definition.constant_results),
         results.end()});
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    auto& data = context->saved_data;
    const ArgumentTensors arguments(data["rest"].toTupleRef().elements().vec(),
                                    data["places"].toIntVector());
    variable_list tensors = context->get_saved_variables();
    const auto count = static_cast<int64_t>(arguments.places().size());
    const variable_list results(tensors.begin() + count, tensors.end());
    tensors.resize(count);

    c10::List<bool> wanted;
    std::vector<size_t> places;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].is_floating_point()) continue;
      wanted.push_back(context->needs_input_grad(i));
      if (context->needs_input_grad(i)) places.push_back(i);
    }
    Stack stack = {results, slopes, wanted};
    for (c10::IValue& value : arguments.with(tensors))
      stack.push_back(std::move(value));
    c10::Dispatcher::singleton()
        .findSchemaOrThrow((data["operator"].toStringRef() + "_backward").c_str(), "")
        .callBoxed(&stack);

    const variable_list found = stack.front().toTensorVector();
    variable_list gradients(3 + tensors.size());  // after handle, definition, arguments
    for (size_t i = 0; i < places.size(); ++i) gradients[3 + places[i]] = found[i];
    return gradients;
  }
};

struct RunWithAutograd : c10::OperatorKernel {
  explicit RunWithAutograd(const Operator& given) : definition(given) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  Stack* stack) const {
    const ArgumentTensors arguments(arguments_of(handle, stack));
    answer(handle, stack,
           OperatorFunction::apply(handle, definition, arguments,
                                   at::TensorList(arguments.tensors())));
  }

  Operator definition;
};

}  // namespace

torch::CppFunction autograd_kernel(const Operator& definition) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<RunWithAutograd>(definition));
}

}  // namespace longspan::ops
