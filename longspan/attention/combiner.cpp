#include "longspan/attention/combiner.h"

#include <torch/nn/init.h>

#include <limits>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/kernels/matmul.h"

namespace longspan {

using torch::Tensor;

Source Summaries::source(const Layout& layout) const {
  return {.k = k,
          .v = v,
          .layout = layout,
          .to = valid.defined() ? open_where(valid) : Tensor()};
}

Summaries Summaries::joined(Record& state) const {
  const Tensor known = valid.defined() ? valid
                                       : torch::ones({k.size(0), k.size(2)},
                                                     k.options().dtype(torch::kBool));
  return {.k = state.grow("k", k, 2),
          .v = state.grow("v", v, 2),
          .valid = state.grow("valid", known, 1)};
}

SpanPooling::SpanPooling(torch::nn::Module& owner, const Settings& settings,
                         const Sizes& sizes) {
  const std::string& summary = settings.word("summary");
  how_ = summary.ends_with("max") ? Pooling::max : Pooling::mean;
  if (!summary.starts_with("deepsets")) return;
  const auto weight = [&](const char* name) {
    Tensor made = owner.register_parameter(
        name, torch::empty({sizes.head_width, sizes.head_width}));
    torch::nn::init::xavier_uniform_(made);
    return made;
  };
  query_weight_ = weight("summary_query_weight");
  key_weight_ = weight("summary_key_weight");
}

Tensor SpanPooling::of_queries(const Tensor& q) const {
  return query_weight_.defined() ? torch::relu(longspan::linear(q, query_weight_)) : q;
}

Tensor SpanPooling::of_keys(const Tensor& k) const {
  return key_weight_.defined() ? torch::relu(longspan::linear(k, key_weight_)) : k;
}

Tensor SpanPooling::pooled(const Tensor& x, const Tensor& real,
                           const std::vector<Span>& spans) const {
  return pool_spans({.x = x, .keep = real.defined() ? real.unsqueeze(1) : Tensor()},
                    spans, how_)
      .out;
}

Summaries SpanPooling::summaries(const Tensor& q, const Tensor& k,
                                 const Source& tokens) const {
  const Attended attended = block_attention({.q = q}, {tokens});
  Summaries made{.k = for_heads(k, q.size(1)), .v = attended.out};
  if (tokens.to.defined())
    made.valid =
        attended.lse.select(1, 0).detach() > -std::numeric_limits<double>::infinity();
  return made;
}

Sight Combiner::sight(int64_t tokens, bool causal) {
  Tensor direct = torch::zeros({tokens, tokens}, torch::kBool), summarised = direct;
  for (const Plan& plan : plans(tokens, causal)) {
    direct = direct | plan.direct;
    summarised =
        summarised |
        (plan.spans.to(torch::kFloat).matmul(plan.members.to(torch::kFloat)) > 0);
  }
  const Tensor pairs =
      summarised.to(torch::kByte) * static_cast<int64_t>(Sees::summarised);
  return {
      .pairs =
          pairs.masked_fill(direct, static_cast<int64_t>(Sees::directly)).unsqueeze(0)};
}

Tensor Combiner::define(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) {
  const auto all = plans(q.size(2), pass.mask.causal);
  Tensor sum;
  for (const Plan& plan : all) {
    const Tensor one = combined(plan, pooling_, q, k, v, pass.mask.tokens);
    sum = sum.defined() ? sum + one : one;
  }
  return sum / static_cast<int64_t>(all.size());
}

Tensor combined(const CombinerPlan& plan, const SpanPooling& pooling, const Tensor& q,
                const Tensor& k, const Tensor& v, const Tensor& real_tokens) {
  const int64_t tokens = q.size(2), group = q.size(1) / k.size(1);
  const auto& [direct, members, spans] = plan;
  const auto device = q.device();
  const Tensor real = real_tokens.defined()
                          ? real_tokens.to(device)
                          : torch::ones({1, tokens}, q.options().dtype(torch::kBool));
  const Tensor held =
      members.to(device).unsqueeze(0) & real.unsqueeze(1);  // [B|1, G, N]
  const Tensor empty = held.any(2).logical_not();           // [B|1, G]
  const auto pooled = [&](const Tensor& x) {  // [B, H, N, d] -> [B, H, G, d]
    const Tensor keep = held.unsqueeze(1).unsqueeze(4);
    const Tensor rows = x.unsqueeze(2);
    const Tensor out = pooling.how() == Pooling::max
                           ? std::get<0>(rows.masked_fill(keep.logical_not(),
                                                          hidden_score(x.scalar_type()))
                                             .max(3))
                           : (rows * keep).sum(3) / keep.sum(3).clamp_min(1);
    return out.masked_fill(empty.unsqueeze(1).unsqueeze(3), 0);
  };
  const Tensor values =
      masked_attention(pooled(pooling.of_queries(q)), k, v, held.unsqueeze(1), Pass());
  const Tensor seen =
      torch::cat({(direct.to(device).unsqueeze(0) & real.unsqueeze(1)),
                  spans.to(device).unsqueeze(0) & empty.logical_not().unsqueeze(1)},
                 2);
  const auto for_queries = [&](const Tensor& x) {
    return x.repeat_interleave(group, 1);
  };
  return masked_attention(
      q, torch::cat({for_queries(k), for_queries(pooled(pooling.of_keys(k)))}, 2),
      torch::cat({for_queries(v), values}, 2), seen.unsqueeze(1), Pass());
}

}  // namespace longspan
