#include "longspan/kernels/linear_attention.h"

#include <limits>
#include <vector>

#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/matmul.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeast = 1e-30;  // a sum to divide by

torch::Dtype precision(const LinearInputs& inputs) {
  for (const Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v})
    if (tensor->scalar_type() == torch::kDouble) return torch::kDouble;
  return torch::kFloat;
}

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
  require(sums.scalar_type() == precision(inputs),
          "linear attention: state.sums must be ", precision(inputs),
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
  if (log_decay.defined()) check_per_key("log_decay", log_decay, inputs);
  if (weights.defined()) check_per_key("weights", weights, inputs);
  check_state(inputs, options.log_features);
  const bool uses_epsilon = options.normaliser == Normaliser::plus ||
                            options.normaliser == Normaliser::at_least;
  require(!uses_epsilon || options.epsilon > 0,
          "linear attention: epsilon must be more than 0, got ", options.epsilon);
}

// Logs of what the decays leave of one step at another.
struct Decay {
  Tensor pairs;    // [B|1, H|1, N, M]: of a key at a query; -inf where it is later
  Tensor start;    // [B|1, H|1, N]: of the initial state at a query
  Tensor end;      // [B|1, H|1, M]: of a key after the last one
  Tensor through;  // [B|1, H|1, 1]: of the initial state after the last key
};

Decay decay_of(const Tensor& log_decay, bool causal, int64_t queries, int64_t keys,
               at::TensorOptions options) {
  Decay decay;
  if (log_decay.defined()) {
    // In double: a difference of two long sums.
    const Tensor steps = log_decay.to(torch::kDouble);
    const Tensor sum = steps.cumsum(-1);
    const Tensor total = steps.sum(-1, /*keepdim=*/true);
    decay = {.pairs = (sum.unsqueeze(-1) - sum.unsqueeze(-2)).to(options),
             .start = sum.to(options),
             .end = (total - sum).to(options),
             .through = total.to(options)};
  } else {
    decay = {.pairs = torch::zeros({1, 1, queries, keys}, options),
             .start = torch::zeros({1, 1, queries}, options),
             .end = torch::zeros({1, 1, keys}, options),
             .through = torch::zeros({1, 1, 1}, options)};
  }
  if (causal) {
    const Tensor later =
        torch::ones({queries, keys}, options.dtype(torch::kBool)).triu(1);
    decay.pairs = decay.pairs.masked_fill(later, -kInfinity);
  }
  return decay;
}

// The largest along the last axis of `a` and `b`, minus infinity where there is
// nothing; `b` may be undefined.
Tensor largest(const Tensor& a, Tensor b) {
  auto sizes = a.sizes().vec();
  sizes.back() = 1;
  if (!b.defined()) b = a.new_full(sizes, -kInfinity);
  return torch::cat({a.detach(), b}, -1).amax(-1);
}

Tensor finite_or_0(const Tensor& max) { return max.masked_fill(max == -kInfinity, 0); }

// The inputs of the reference: one dtype, H heads, and nothing left of padding.
struct Prepared {
  Tensor q, k;     // [B, H, N|M, m]
  Tensor v1;       // [B, H, M, dv + 1]: values and a 1
  Tensor weights;  // [B|1, H|1, M, 1]
  Decay decay;
  LinearState state;
};

Prepared prepare(const LinearInputs& inputs, const LinearAttention& options) {
  const auto dtype = precision(inputs);
  const int64_t heads = inputs.q.size(1), queries = inputs.q.size(2),
                keys = inputs.k.size(2);
  const auto repeated = [&](const Tensor& x) {
    const int64_t group = heads / x.size(1);
    return (group == 1 ? x : x.repeat_interleave(group, 1)).to(dtype);
  };
  Prepared in;
  in.q = inputs.q.to(dtype);
  in.k = repeated(inputs.k);
  const Tensor v = repeated(inputs.v);
  in.v1 = torch::cat({v, v.new_ones({v.size(0), heads, keys, 1})}, -1);
  if (inputs.weights.defined()) {
    in.weights = inputs.weights.to(dtype).unsqueeze(-1);
    const Tensor padding = in.weights == 0;
    in.k = in.k.masked_fill(padding, options.log_features ? -kInfinity : 0);
    in.v1 = in.v1.masked_fill(padding, 0);
  } else {
    in.weights = torch::ones({1, 1, keys, 1}, in.q.options());
  }
  in.decay = decay_of(inputs.log_decay, options.causal, queries, keys, in.q.options());
  if (inputs.state.sums.defined()) in.state.sums = inputs.state.sums.to(dtype);
  if (inputs.state.max.defined()) in.state.max = inputs.state.max.to(dtype).detach();
  return in;
}

// num and den of every query, times exp(-log_scale).
struct Rows {
  Tensor sums;       // [B, H, N, dv + 1]
  Tensor log_scale;  // [B, H, N], constant
};

Rows rows_of_features(const Prepared& in) {
  const auto& [q, k, v1, weights, decay, state] = in;
  const Tensor weight = longspan::matmul(q, k.transpose(-1, -2)) * decay.pairs.exp() *
                        weights.transpose(-1, -2);
  Tensor sums = longspan::matmul(weight, v1);
  if (state.sums.defined())
    sums = sums + longspan::matmul(q * decay.start.exp().unsqueeze(-1), state.sums);
  return {.sums = sums, .log_scale = torch::zeros_like(q.select(-1, 0))};
}

// Each row has its own scale, its largest term: no other row can push it out of range.
Rows rows_of_logs(const Prepared& in) {
  const auto& [q, k, v1, weights, decay, state] = in;
  const Tensor terms =
      q.unsqueeze(3) + k.unsqueeze(2) + decay.pairs.unsqueeze(-1);  // [B, H, N, M, m]
  const Tensor log_weights = weights.detach().abs().clamp_min(kLeast).log();
  const Tensor of_keys = terms.detach().amax(-1) + log_weights.transpose(-1, -2);
  Tensor before, of_state;
  if (state.sums.defined()) {
    before = q + decay.start.unsqueeze(-1) + state.max.unsqueeze(-1).unsqueeze(-1);
    const Tensor log_sums = state.sums.detach().abs().amax(-1).log();  // [B, H, m]
    of_state = (before.detach() + log_sums.unsqueeze(2)).amax(-1, /*keepdim=*/true);
  }
  const Tensor scale = finite_or_0(largest(of_keys, of_state));

  const Tensor weight = (terms - scale.unsqueeze(-1).unsqueeze(-1)).exp().sum(-1) *
                        weights.transpose(-1, -2);
  Tensor sums = longspan::matmul(weight, v1);
  if (state.sums.defined()) {
    // Only sums of 0 can need the limit: 0 times infinity is not 0.
    const double limit = q.scalar_type() == torch::kDouble ? 709 : 88;
    const Tensor features = (before - scale.unsqueeze(-1)).clamp_max(limit).exp();
    sums = sums + longspan::matmul(features, state.sums);
  }
  return {.sums = sums, .log_scale = scale};
}

Tensor normalised(const Rows& rows, const LinearAttention& options) {
  const int64_t width = rows.sums.size(-1) - 1;
  const Tensor num = rows.sums.slice(-1, 0, width);
  const Tensor den = rows.sums.slice(-1, width);
  const Tensor log_scale = rows.log_scale.unsqueeze(-1);
  const auto epsilon = [&] { return (-log_scale).exp() * options.epsilon; };
  switch (options.normaliser) {
    case Normaliser::none: return num * log_scale.exp();
    case Normaliser::plus: return num / (den + epsilon());
    case Normaliser::at_least: {
      const Tensor least = epsilon();
      return num / torch::where(den > least, den, least);
    }
    case Normaliser::if_positive: break;
  }
  const Tensor nothing = den <= kLeast;
  return (num / den.masked_fill(nothing, 1)).masked_fill(nothing, 0);
}

Tensor log_of_den(const Rows& rows) {
  const Tensor den = rows.sums.select(-1, rows.sums.size(-1) - 1);
  const Tensor nothing = den <= 0;
  return (den.masked_fill(nothing, 1).log() + rows.log_scale)
      .masked_fill(nothing, -kInfinity);
}

LinearState final_state(const Prepared& in, bool log_features) {
  const auto& [q, k, v1, weights, decay, state] = in;
  LinearState after;
  Tensor features, kept;
  if (log_features) {
    after.max = largest(k.flatten(2),
                        state.max.defined() ? state.max.unsqueeze(-1) : state.max);
    const Tensor scale = finite_or_0(after.max).unsqueeze(-1);  // [B, H, 1]
    features = (k + (decay.end - scale).unsqueeze(-1)).exp();
    if (state.max.defined())
      kept = (state.max.unsqueeze(-1) + decay.through - scale).exp();
  } else {
    features = k * decay.end.exp().unsqueeze(-1);
    kept = decay.through.exp();
  }
  after.sums = longspan::matmul((features * weights).transpose(-1, -2), v1);
  if (state.sums.defined()) after.sums = after.sums + kept.unsqueeze(-1) * state.sums;
  return after;
}

}  // namespace

LinearAttended linear_attention(const LinearInputs& inputs,
                                const LinearAttention& options) {
  check(inputs, options);
  const Tensor &q = inputs.q, &v = inputs.v;
  // A token is put into the sums, and read from them.
  const Flops counted(2 * q.size(0) * q.size(1) * (q.size(2) + v.size(2)) * q.size(3) *
                      (v.size(3) + 1));
  return linear_attention_reference(inputs, options);
}

LinearAttended linear_attention_reference(const LinearInputs& inputs,
                                          const LinearAttention& options) {
  const Prepared in = prepare(inputs, options);
  const Rows rows = options.log_features ? rows_of_logs(in) : rows_of_features(in);
  return {.out = normalised(rows, options).to(inputs.v.scalar_type()),
          .lse = log_of_den(rows),
          .state = final_state(in, options.log_features)};
}

}  // namespace longspan
