#include "longspan/attention/feature_attention.h"

#include <utility>

namespace longspan {

using torch::Tensor;

LinearAttended continued_attention(LinearInputs inputs, const LinearAttention& options,
                                   Record* state) {
  if (state) inputs.state = {.sums = state->get("sums"), .max = state->get("max")};
  const LinearAttended attended = linear_attention(inputs, options);
  if (state) {
    state->set("sums", attended.state.sums);
    if (options.log_features) state->set("max", attended.state.max);
  }
  return attended;
}

Tensor attend_by_features(LinearInputs inputs, LinearAttention options, Pass& pass) {
  auto& [q, k, v, log_decay, weights, state] = inputs;
  const int64_t queries = q.size(2), keys = k.size(2);
  options.causal = pass.mask.causal;
  const Tensor tokens = keys > 0 ? pass.keys(queries, keys).tokens : Tensor();
  if (tokens.defined()) {
    const Tensor real = tokens.to(k.device()).unsqueeze(1),
                 padding = real.logical_not();
    weights =
        weights.defined() ? weights.masked_fill(padding, 0) : real.to(torch::kFloat);
    if (log_decay.defined()) log_decay = log_decay.masked_fill(padding, 0);
  }
  if (pass.state && !pass.crosses()) pass.state->tokens += queries;
  return continued_attention(std::move(inputs), options, pass.state).out;
}

Tensor define_by_features(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& pairs, const LinearAttention& options) {
  const auto of_every_head = [&](const Tensor& x) {
    return x.repeat_interleave(q.size(1) / x.size(1), 1);
  };
  const Tensor products =
      q.matmul(of_every_head(k).transpose(2, 3)) * pairs.to(q.scalar_type());
  const Tensor num = products.matmul(of_every_head(v)),
               den = products.sum(3, /*keepdim=*/true);
  switch (options.normaliser) {
    case Normaliser::none: return num;
    case Normaliser::plus: return num / (den + options.epsilon);
    case Normaliser::at_least: return num / den.clamp_min(options.epsilon);
    case Normaliser::if_positive: break;
  }
  const Tensor nothing = den <= 1e-30;
  return (num / den.masked_fill(nothing, 1)).masked_fill(nothing, 0);
}

Sight sight_of_sums(int64_t tokens, bool causal) {
  const Tensor all = torch::full({1, tokens, tokens},
                                 static_cast<int64_t>(Sees::summarised), torch::kByte);
  return {.pairs = causal ? all.tril() : all};
}

}  // namespace longspan
