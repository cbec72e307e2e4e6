#include "longspan/attention/prepare.h"

#include <limits>

namespace longspan {
namespace {

using torch::Tensor;

// [n] or [B, n] as [n] or [B, 1, n]: alike for all heads.
Tensor for_heads(const Tensor& tensor) {
  return tensor.dim() == 2 ? tensor.unsqueeze(1) : tensor;
}

// What is known about the tokens of `state` and now of `count` more of them. Either
// side may be undefined, and is then what `usual(first, count)` says; all undefined
// stays so.
template <class Usual>
Tensor remembered(Record& state, const char* name, const Tensor& now, int64_t examples,
                  int64_t count, Usual usual) {
  const Tensor past = state.get(name);
  if (!past.defined() && !now.defined()) return {};
  const auto rows = [&](const Tensor& tensor) {
    return tensor.dim() == 1 ? tensor.unsqueeze(0).expand({examples, -1}) : tensor;
  };
  const Tensor before =
      past.defined() ? past : rows(usual(int64_t{0}, state.tokens).to(now.device()));
  const Tensor after =
      rows(now.defined() ? now.to(before.scalar_type())
                         : usual(state.tokens, count).to(past.device()));
  const Tensor all = torch::cat({before.to(after.scalar_type()), after}, 1);
  state.set(name, all);
  return all;
}

}  // namespace

Prepared prepare(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) {
  Prepared prepared;
  auto& [queries, source, options, order] = prepared;
  const int64_t examples = q.size(0), count = q.size(2);
  queries.q = q;
  source.k = k;
  source.v = v;
  const bool is_self = !pass.crosses() && k.size(2) == count;
  Tensor tokens = is_self ? pass.mask.tokens : pass.context.tokens;
  Tensor segment = pass.mask.segment;
  Tensor key_positions = is_self ? pass.positions : pass.context.positions;

  if (Record* const state = pass.state) {
    const auto grown = [&](const char* name, const Tensor& now) {
      const Tensor past = state->get(name);
      const Tensor all = past.defined() ? torch::cat({past, now}, 2) : now;
      state->set(name, all);
      return all;
    };
    source.k = grown("k", k);
    source.v = grown("v", v);
    tokens =
        remembered(*state, "tokens", tokens, examples, count,
                   [](int64_t, int64_t n) { return torch::ones(n, torch::kBool); });
    segment =
        remembered(*state, "segment", segment, examples, count,
                   [](int64_t, int64_t n) { return torch::zeros(n, torch::kLong); });
    key_positions = remembered(
        *state, "positions", key_positions, examples, count,
        [](int64_t first, int64_t n) { return torch::arange(first, first + n); });
    state->tokens += count;
  }

  const int64_t shift = source.k.size(2) - count;
  queries.first = shift;
  queries.positions = pass.positions.defined() ? for_heads(pass.positions) : Tensor();
  if (pass.state && key_positions.defined())
    queries.positions = for_heads(key_positions.slice(1, shift));
  if (key_positions.defined()) source.positions = for_heads(key_positions);

  order = all_keys();
  if (pass.mask.causal) {
    if (queries.positions.defined() || source.positions.defined())
      source.from =
          source.positions.defined()
              ? source.positions
              : torch::arange(source.k.size(2), q.options().dtype(torch::kLong));
    else
      order = past_keys(shift);
  }
  if (tokens.defined()) {
    using Limit = std::numeric_limits<int32_t>;
    const auto whole = q.options().dtype(torch::kInt);
    source.to =
        torch::where(tokens.to(q.device()), torch::full({}, Limit::max(), whole),
                     torch::full({}, Limit::min(), whole))
            .unsqueeze(1);
  }
  if (segment.defined()) {
    source.buckets = for_heads(segment);
    queries.buckets = for_heads(segment.slice(1, shift));
  }
  source.bias = pass.bias;
  if (pass.training && pass.dropout > 0)
    options.dropout = {.probability = pass.dropout, .key = pass.draw.key()};
  return prepared;
}

}  // namespace longspan
