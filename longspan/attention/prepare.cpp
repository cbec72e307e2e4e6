#include "longspan/attention/prepare.h"

#include <limits>
#include <optional>

#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

// [n] or [B, n] as [n] or [B, 1, n]: alike for all heads.
Tensor for_heads(const Tensor& tensor) {
  return tensor.dim() == 2 ? tensor.unsqueeze(1) : tensor;
}

// What prepare() keeps beside k and v, of every key.
constexpr const char* kOfKeys[] = {"tokens", "segment", "positions", "global"};

// What is known about the `held` keys of `state` and now of `count` more, [B, n]. Where
// one side is undefined it is `usual`; both undefined stays so.
Tensor remembered(Record& state, const char* name, const Tensor& now, int64_t examples,
                  int64_t held, int64_t count, int64_t usual) {
  const Tensor past = state.get(name);
  if (!past.defined() && !now.defined()) return {};
  const Tensor& like = past.defined() ? past : now;
  const auto filled = [&](int64_t n) {
    return torch::full({examples, n}, usual, like.options());
  };
  const Tensor before = past.defined() ? past : filled(held);
  const Tensor after =
      now.defined() ? now.expand({examples, -1}).to(like.options()) : filled(count);
  const Tensor all = torch::cat({before, after}, 1);
  state.set(name, all);
  return all;
}

}  // namespace

Prepared prepare(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) {
  Prepared prepared;
  auto& [queries, source, options, global, order] = prepared;
  const int64_t examples = q.size(0), count = q.size(2);
  queries.q = q;
  source.k = k;
  source.v = v;
  auto [unused, tokens, key_positions] = pass.keys(count, k.size(2));
  Tensor segment = pass.mask.segment;
  global = pass.mask.global;
  std::optional<int64_t> first;

  if (Record* const state = pass.state) {
    require(state->tokens == 0 ||
                state->get("positions").defined() == pass.positions.defined(),
            "positions must be given for all tokens of a decoding state or for none");
    source.k = state->grow("k", k, 2);
    source.v = state->grow("v", v, 2);
    const auto known = [&](const char* name, const Tensor& now, int64_t usual) {
      return remembered(*state, name, now, examples, source.k.size(2) - count, count,
                        usual);
    };
    tokens = known("tokens", tokens, 1);
    segment = known("segment", segment, 0);
    key_positions = known("positions", key_positions, 0);
    global = known("global", global, 0);
    first = state->tokens;
    state->tokens += count;
  }

  const int64_t shift = source.k.size(2) - count;
  queries.first = first.value_or(shift);
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
  if (tokens.defined()) source.to = open_where(tokens.to(q.device()));
  if (global.defined()) {
    global = global.to(q.device());
    if (tokens.defined()) global = global.logical_and(tokens.to(q.device()));
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

Tensor open_where(const Tensor& real) {
  using Limit = std::numeric_limits<int64_t>;
  const auto whole = real.options().dtype(torch::kLong);
  return torch::where(real, torch::full({}, Limit::max(), whole),
                      torch::full({}, Limit::min(), whole))
      .unsqueeze(1);
}

void keep_keys(Record& state, const Tensor& kept) {
  const auto keep = [&](const char* name, int64_t axis) {
    if (const Tensor held = state.get(name); held.defined())
      state.set(name, held.index_select(axis, kept.to(held.device())));
  };
  keep("k", 2);
  keep("v", 2);
  for (const char* const name : kOfKeys) keep(name, 1);
}

}  // namespace longspan
