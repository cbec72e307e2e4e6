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

// The pairs of places that the layout of a source shows, over all examples and heads.
int64_t visited_pairs(const Queries& queries, const Source& source,
                      const AttentionSizes& sizes) {
  const auto places = [](const Tensor& rows, int64_t count) {
    return rows.defined() ? rows.size(-1) : count;
  };
  if (!source.layout)
    return sizes.examples * sizes.heads * places(queries.rows, sizes.queries) *
           places(source.rows, source.k.size(2));
  std::vector<int64_t> each;
  for (int64_t pattern = 0; pattern < source.layout->patterns(); ++pattern)
    each.push_back(source.layout->pairs(pattern));
  int64_t pairs = 0;
  for (int64_t example = 0; example < sizes.examples; ++example)
    for (int64_t head = 0; head < sizes.heads; ++head)
      pairs += each[source.layout->pattern_of(example, head)];
  return pairs;
}

// The tensors of a call, all of which autograd keeps: it notices when one is changed.
std::vector<Tensor*> tensors_of(AttentionCall& call) {
  std::vector<Tensor*> all = call.learned();
  for (Tensor* tensor : call.integers()) all.push_back(tensor);
  return all;
}

// A call without its tensors.
struct KeptCall : torch::CustomClassHolder {
  explicit KeptCall(AttentionCall given) : call(std::move(given)) {
    for (Tensor* tensor : tensors_of(call)) *tensor = torch::empty({0});
  }

  AttentionCall with(const variable_list& tensors) const {
    AttentionCall whole = call;
    const std::vector<Tensor*> places = tensors_of(whole);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = tensors[i];
    return whole;
  }

  AttentionCall call;
};

class BlockAttentionFunction
    : public torch::autograd::Function<BlockAttentionFunction> {
 public:
  // Autograd sees the learned tensors of the call in the list after it.
  static variable_list forward(AutogradContext* context, AttentionCall call,
                               at::TensorList) {
    const Attended result = fused_attention(call);
    variable_list kept;
    for (const Tensor* tensor : tensors_of(call)) kept.push_back(*tensor);
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
