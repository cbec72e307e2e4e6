// The stack of values that boxed kernels take their arguments from and leave their
// results on.

#pragma once

#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "longspan/ops/operator.h"

namespace longspan::ops {

using Stack = std::vector<c10::IValue>;

inline Values arguments_of(const c10::OperatorHandle& handle, const Stack* stack) {
  return torch::jit::last(stack, handle.schema().arguments().size());
}

// Replaces the arguments by the results.
template <class Results>
void answer(const c10::OperatorHandle& handle, Stack* stack, Results&& results) {
  torch::jit::drop(stack, handle.schema().arguments().size());
  for (auto& result : results) stack->emplace_back(std::move(result));
}

inline void call_below_autograd(const c10::OperatorHandle& handle, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  handle.callBoxed(stack);
}

// Compiled code counts on it.
inline std::vector<torch::Tensor> dense(std::vector<torch::Tensor> tensors) {
  for (torch::Tensor& tensor : tensors) tensor = tensor.contiguous();
  return tensors;
}

}  // namespace longspan::ops
