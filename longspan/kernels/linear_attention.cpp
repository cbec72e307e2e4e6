#include "longspan/kernels/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/linear_attention_cpu.h"
#include "longspan/kernels/linear_attention_cuda.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_4d(const Tensor& tensor) { return tensor.defined() && tensor.dim() == 4; }

void check_device(const char* name, const Tensor& tensor, const Tensor& q) {
  require(tensor.device() == q.device(), "linear attention: ", name,
          " must be on the device of q, ", q.device(), ", got ", tensor.device());
}

void check_floating(const char* name, const Tensor& tensor) {
  require(tensor.is_floating_point(), "linear attention: ", name,
          " must be floating, got ", tensor.scalar_type());
}

// One number for each key.
void check_per_key(const char* name, const Tensor& tensor, const LinearInputs& inputs) {
  const int64_t examples = inputs.q.size(0), heads = inputs.q.size(1),
                keys = inputs.k.size(2);
  const auto is = [&](int axis, int64_t size) {
    return tensor.size(axis) == size || tensor.size(axis) == 1;
  };
  require(
      tensor.dim() == 3 && is(0, examples) && is(1, heads) && tensor.size(2) == keys,
      "linear attention: ", name, " must be [", examples, "|1, ", heads, "|1, ", keys,
      "], got ", shape(tensor));
  check_floating(name, tensor);
  check_device(name, tensor, inputs.q);
}

// One of `log_decay` that is none, 0 where all are.
double not_a_log_decay(const Tensor& log_decay) {
  const auto is_one = [](double x) { return std::isfinite(x) && x <= 0; };
  if (log_decay.numel() == 0 || log_decay.is_meta()) return 0;
  const Tensor all = log_decay.detach().to(torch::kDouble);
  if (!log_decay.is_cpu()) {
    const double least = all.min().item<double>();
    return is_one(least) ? std::max(0.0, all.max().item<double>()) : least;
  }
  const Tensor dense = all.contiguous();
  const double* const from = dense.data_ptr<double>();
  const double* const end = from + dense.numel();
  const double* const found = std::find_if_not(from, end, is_one);
  return found == end ? 0 : *found;
}

void check_log_decay(const LinearInputs& inputs) {
  check_per_key("log_decay", inputs.log_decay, inputs);
  const double found = not_a_log_decay(inputs.log_decay);
  require(found == 0, "linear attention: log_decay must be finite and at most 0, got ",
          found);
}

void check_state(const LinearInputs& inputs, bool log_features) {
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  const auto& [sums, max] = state;
  require(log_features || !max.defined(),
          "linear attention: state.max is for log features only, got ", shape(max));
  if (!sums.defined()) {
    require(!max.defined(), "linear attention: state.max needs state.sums, got none");
    return;
  }
  const std::vector<int64_t> sizes{q.size(0), q.size(1), q.size(3), v.size(3) + 1};
  require(sums.sizes() == at::IntArrayRef(sizes),
          "linear attention: state.sums must be ", at::IntArrayRef(sizes), ", got ",
          shape(sums));
  require(sums.scalar_type() == sums_dtype(inputs),
          "linear attention: state.sums must be ", sums_dtype(inputs),
          " for these q, k ", "and v, got ", sums.scalar_type());
  check_device("state.sums", sums, q);
  if (!log_features) return;
  require(max.defined() && max.sizes() == q.sizes().slice(0, 2),
          "linear attention: state.max must be ", q.sizes().slice(0, 2),
          " for log features, got ", shape(max));
  check_floating("state.max", max);
  check_device("state.max", max, q);
}

void check(const LinearInputs& inputs, const LinearAttention& options) {
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  require(is_4d(q) && is_4d(k) && is_4d(v) && q.size(0) == k.size(0) &&
              q.size(3) == k.size(3) && k.sizes().slice(0, 3) == v.sizes().slice(0, 3),
          "linear attention: q, k and v must be [B, H, N, m], [B, Hk, M, m] and ",
          "[B, Hk, M, dv], got ", shape(q), ", ", shape(k), " and ", shape(v));
  require(q.size(3) > 0, "linear attention: there must be at least one feature, got ",
          shape(q));
  require(k.size(1) > 0 && q.size(1) % k.size(1) == 0,
          "linear attention: the heads of k must divide those of q, got ", k.size(1),
          " and ", q.size(1));
  check_floating("q", q);
  check_floating("k", k);
  check_floating("v", v);
  check_device("k", k, q);
  check_device("v", v, q);
  require(!options.causal || q.size(2) == k.size(2),
          "linear attention: causal needs as many queries as keys, got ", q.size(2),
          " and ", k.size(2));
  require(options.causal || !log_decay.defined(),
          "linear attention: log_decay is for causal only, got ", shape(log_decay));
  if (log_decay.defined()) check_log_decay(inputs);
  if (weights.defined()) check_per_key("weights", weights, inputs);
  check_state(inputs, options.log_features);
  const bool uses_epsilon = options.normaliser == Normaliser::plus ||
                            options.normaliser == Normaliser::at_least;
  require(!uses_epsilon || options.epsilon > 0,
          "linear attention: epsilon must be more than 0, got ", options.epsilon);
}

LinearForward forward_of(const LinearInputs& inputs, const LinearAttention& options,
                         bool differentiable) {
  if constexpr (kHasCuda)
    if (inputs.q.is_cuda())
      return linear_attention_cuda(inputs, options, differentiable);
  return linear_attention_cpu(inputs, options, differentiable);
}

LinearInputSlopes gradient_of(const LinearInputs& inputs,
                              const LinearAttention& options, const LinearKept& kept,
                              const Tensor& max, const LinearResultSlopes& slopes,
                              const LinearWanted& wanted) {
  if constexpr (kHasCuda)
    if (inputs.q.is_cuda())
      return linear_attention_gradient_cuda(inputs, options, kept, max, slopes, wanted);
  return linear_attention_gradient_cpu(inputs, options, kept, max, slopes, wanted);
}

class LinearAttentionFunction
    : public torch::autograd::Function<LinearAttentionFunction> {
 public:
  // Returns out, lse, and sums and max of the final state.
  static variable_list forward(AutogradContext* context, const Tensor& q,
                               const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& weights,
                               const Tensor& sums, const Tensor& max,
                               const LinearAttention& options) {
    const LinearInputs inputs = inputs_of({q, k, v, log_decay, weights, sums, max});
    const auto [attended, kept] = forward_of(inputs, options, /*differentiable=*/true);
    const Tensor last_max = or_none(attended.state.max);
    context->save_for_backward({q, k, v, log_decay, weights, sums, max, kept.out,
                                kept.den, or_none(kept.scale), or_none(kept.sums),
                                or_none(kept.peaks), last_max});
    context->saved_data["causal"] = options.causal;
    context->saved_data["log_features"] = options.log_features;
    context->saved_data["normaliser"] = static_cast<int64_t>(options.normaliser);
    context->saved_data["epsilon"] = options.epsilon;
    context->mark_non_differentiable({last_max});
    context->set_materialize_grads(false);
    return {attended.out, attended.lse, attended.state.sums, last_max};
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    require(!torch::GradMode::is_enabled(),
            "linear attention: it has no second derivatives; ",
            "linear_attention_reference() has");
    const variable_list saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const LinearAttention options{
        .causal = data["causal"].toBool(),
        .log_features = data["log_features"].toBool(),
        .normaliser = static_cast<Normaliser>(data["normaliser"].toInt()),
        .epsilon = data["epsilon"].toDouble()};
    const LinearKept kept{.out = saved[7],
                          .den = saved[8],
                          .scale = unless_none(saved[9]),
                          .sums = unless_none(saved[10]),
                          .peaks = unless_none(saved[11])};
    const LinearWanted wanted{.q = context->needs_input_grad(0),
                              .k = context->needs_input_grad(1),
                              .v = context->needs_input_grad(2),
                              .log_decay = context->needs_input_grad(3),
                              .weights = context->needs_input_grad(4),
                              .sums = context->needs_input_grad(5)};
    const auto result =
        gradient_of(inputs_of(saved), options, kept, unless_none(saved[12]),
                    {.out = slopes[0], .lse = slopes[1], .sums = slopes[2]}, wanted);
    return {result.q,       result.k,    result.v, result.log_decay,
            result.weights, result.sums, Tensor(), Tensor()};
  }

 private:
  static LinearInputs inputs_of(const variable_list& all) {
    return {.q = all[0],
            .k = all[1],
            .v = all[2],
            .log_decay = unless_none(all[3]),
            .weights = unless_none(all[4]),
            .state = {.sums = unless_none(all[5]), .max = unless_none(all[6])}};
  }
};

bool needs_gradients(const LinearInputs& inputs) {
  if (!torch::GradMode::is_enabled()) return false;
  for (const Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                               &inputs.weights, &inputs.state.sums})
    if (tensor->defined() && tensor->requires_grad()) return true;
  return false;
}

}  // namespace

torch::Dtype sums_dtype(const LinearInputs& inputs) {
  for (const Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v})
    if (tensor->scalar_type() == torch::kDouble) return torch::kDouble;
  return torch::kFloat;
}

LinearAttended linear_attention(const LinearInputs& inputs,
                                const LinearAttention& options) {
  check(inputs, options);
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  // A token is put into the sums, and read from them.
  const Flops counted(2 * q.size(0) * q.size(1) * (q.size(2) + v.size(2)) * q.size(3) *
                      (v.size(3) + 1));
  if (!has_kernels_for(q)) return linear_attention_reference(inputs, options);
  if (!needs_gradients(inputs))
    return forward_of(inputs, options, /*differentiable=*/false).attended;
  const auto result =
      LinearAttentionFunction::apply(q, k, v, or_none(log_decay), or_none(weights),
                                     or_none(state.sums), or_none(state.max), options);
  return {.out = result[0],
          .lse = result[1],
          .state = {.sums = result[2], .max = unless_none(result[3])}};
}

}  // namespace longspan
