#include <limits>

#include "longspan/kernels/linear_attention.h"
#include "longspan/kernels/matmul.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeast = 1e-30;  // a sum to divide by

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
  const auto dtype = sums_dtype(inputs);
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
    const Tensor logs = k + decay.end.unsqueeze(-1);
    Tensor before;  // [B, H, 1]
    if (state.max.defined()) before = state.max.unsqueeze(-1) + decay.through;
    after.max = largest(logs.flatten(2), before.defined() ? before.detach() : before);
    const Tensor scale = finite_or_0(after.max).unsqueeze(-1);  // [B, H, 1]
    features = (logs - scale.unsqueeze(-1)).exp();
    if (before.defined()) kept = (before - scale).exp();
  } else {
    features = k * decay.end.exp().unsqueeze(-1);
    kept = decay.through.exp();
  }
  after.sums = longspan::matmul((features * weights).transpose(-1, -2), v1);
  if (state.sums.defined()) after.sums = after.sums + kept.unsqueeze(-1) * state.sums;
  return after;
}

}  // namespace

LinearAttended linear_attention_reference(const LinearInputs& inputs,
                                          const LinearAttention& options) {
  const Prepared in = prepare(inputs, options);
  const Rows rows = options.log_features ? rows_of_logs(in) : rows_of_features(in);
  return {.out = normalised(rows, options).to(inputs.v.scalar_type()),
          .lse = log_of_den(rows),
          .state = final_state(in, options.log_features)};
}

}  // namespace longspan
