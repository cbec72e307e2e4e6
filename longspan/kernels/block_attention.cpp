#include "longspan/kernels/block_attention.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/kernels/attention_call.h"
#include "longspan/kernels/fused_attention.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class BlockAttentionFunction
    : public torch::autograd::Function<BlockAttentionFunction> {
 public:
  // Autograd sees the learned tensors of the call in the list after it.
  static variable_list forward(AutogradContext* context, AttentionCall call,
                               at::TensorList) {
    const Attended result = fused_attention(call);
    variable_list kept;
    for (const Tensor* tensor : call.tensors()) kept.push_back(*tensor);
    kept.push_back(result.out);
    kept.push_back(result.lse);
    context->save_for_backward(kept);
    context->set_materialize_grads(false);
    context->saved_data["call"] =
        torch::IValue::make_capsule(c10::make_intrusive<KeptCall>(call));
    return {result.out, result.lse};
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    require(!torch::GradMode::is_enabled(),
            "block attention: it has no second derivatives; "
            "block_attention_reference() has");
    const variable_list kept = context->get_saved_variables();
    const Attended result{kept[kept.size() - 2], kept[kept.size() - 1]};
    const auto capsule = context->saved_data["call"].toCapsule();
    AttentionCall call = static_cast<const KeptCall&>(*capsule).with(kept);
    std::vector<bool> wanted;
    for (size_t i = 0; i < call.learned().size(); ++i)
      wanted.push_back(context->needs_input_grad(i));
    variable_list gradients =
        fused_attention_gradient(call, result, {slopes[0], slopes[1]}, wanted);
    gradients.insert(gradients.begin(), Tensor());  // of the call itself
    return gradients;
  }
};

}  // namespace

bool has_fused_attention(torch::Device device) {
  return device.is_cpu() || (kHasCuda && device.is_cuda());
}

namespace {

std::atomic<bool>& torch_attention() {
  static std::atomic<bool> use = [] {
    const char* const given = std::getenv("LONGSPAN_TORCH_ATTENTION");
    return !given || std::string_view(given) != "0";
  }();
  return use;
}

}  // namespace

void use_torch_attention(bool use) { torch_attention() = use; }
bool uses_torch_attention() { return torch_attention(); }

Attended block_attention(const Queries& queries, const std::vector<Source>& sources,
                         const BlockAttention& options) {
  AttentionCall call{queries, sources, options};
  const AttentionSizes sizes = check(call);
  int64_t pairs = 0;
  for (const Source& source : sources) pairs += visited_pairs(queries, source, sizes);
  const Flops counted(2 * pairs * (sizes.width + sizes.value_width));
  if (!has_fused_attention(queries.q.device()))
    return block_attention_reference(queries, sources, options);
  variable_list learned;
  for (const Tensor* tensor : call.learned()) learned.push_back(*tensor);
  const variable_list result =
      BlockAttentionFunction::apply(call, at::TensorList(learned));
  return {result[0], result[1]};
}

}  // namespace longspan
