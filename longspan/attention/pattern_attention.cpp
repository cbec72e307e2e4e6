#include "longspan/attention/pattern_attention.h"

#include <algorithm>
#include <limits>
#include <map>

#include "longspan/attention/dense_reference.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {

using torch::Tensor;

// Part r of the patterns of all heads.
struct PatternAttention::Laid {
  std::vector<Tiles> tiles;
  std::vector<int32_t> of_head;
  Tensor rows;  // [H|1, N]: the token of every place; undefined: places are tokens
};

namespace {

constexpr size_t kMostLayouts = 32;  // of a layer, kept

using Integer = std::numeric_limits<int64_t>;

Tensor tensor_of(const std::vector<int64_t>& numbers) {
  return torch::tensor(numbers, torch::kLong);
}

// [B, 1, G]: which tokens are flagged [B, M], -1 after the last of an example.
Tensor flagged_rows(const Tensor& flags) {
  const Tensor on_cpu = flags.to(torch::kCPU);
  const int64_t most = on_cpu.sum(1).max().item<int64_t>();
  const auto at = torch::arange(flags.size(1), torch::kLong).expand_as(on_cpu);
  const auto last = torch::full({}, Integer::max(), torch::kLong);
  const auto sorted = std::get<0>(torch::where(on_cpu, at, last).sort(1));
  const auto rows = sorted.slice(1, 0, most);
  return rows.masked_fill(rows == Integer::max(), -1).unsqueeze(1);
}

// `to` with the keys hidden where `flags` [B, M].
Tensor hidden_where(const Tensor& flags, const Tensor& to) {
  const auto whole = torch::TensorOptions(torch::kLong).device(flags.device());
  const Tensor open = to.defined() ? to : torch::full({}, Integer::max(), whole);
  return torch::where(flags.unsqueeze(1), torch::full({}, Integer::min(), whole), open);
}

// Where keys at positions that ascend stand among them.
class StepKeys {
 public:
  explicit StepKeys(const std::vector<int64_t>& positions) : positions_(positions) {}

  // The spans of positions as spans of places.
  std::vector<Span> places(std::vector<Span> spans) const {
    tidy(spans, positions_.empty() ? 0 : positions_.back() + 1);
    const auto place = [&](int64_t position) {
      return std::ranges::lower_bound(positions_, position) - positions_.begin();
    };
    for (Span& span : spans) span = {place(span.from), place(span.to)};
    return spans;
  }

 private:
  const std::vector<int64_t>& positions_;
};

std::vector<int64_t> listed(const std::vector<Span>& spans) {
  std::vector<int64_t> all;
  for (const auto& [from, to] : spans)
    for (int64_t at = from; at < to; ++at) all.push_back(at);
  return all;
}

}  // namespace

std::shared_ptr<const std::vector<PatternAttention::Laid>> PatternAttention::laid(
    const Extent& extent) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find(known_, extent, [](const auto& entry) { return entry.first; });
  if (found != known_.end()) {
    known_.splice(known_.begin(), known_, found);
    return found->second;
  }
  const auto [distinct, of_head] = patterns(extent);
  const std::vector<int64_t> sequence = this->sequence(extent);
  size_t parts = 0;
  for (const auto& pattern : distinct) parts = std::max(parts, pattern.size());
  const auto made = std::make_shared<std::vector<Laid>>();
  for (size_t part = 0; part < parts; ++part) {
    Laid laid{.tiles = {}, .of_head = of_head, .rows = {}};
    std::vector<Tensor> rows;
    bool reordered = !sequence.empty();
    for (const auto& pattern : distinct) {
      const PatternPart mine =
          part < pattern.size() ? pattern[part] : PatternPart{no_keys()};
      const std::vector<int64_t> order =
          mine.order ? mine.order() : std::vector<int64_t>{};
      reordered = reordered || mine.order;
      laid.tiles.emplace_back(extent.tokens, extent.tokens,
                              mine.order ? in_order(mine.keys, order) : mine.keys);
      const Tensor places =
          mine.order ? tensor_of(order) : torch::arange(extent.tokens, torch::kLong);
      rows.push_back(sequence.empty() ? places
                                      : tensor_of(sequence).index_select(0, places));
    }
    if (reordered) {
      const auto chosen = torch::tensor(of_head, torch::kLong);
      laid.rows = torch::stack(rows).index_select(0, chosen);
    }
    made->push_back(std::move(laid));
  }
  known_.emplace_front(extent, made);
  if (known_.size() > kMostLayouts) known_.pop_back();
  return made;
}

Extent PatternAttention::extent_of(int64_t tokens, int64_t length, bool causal) const {
  const bool of_longest = causal && longest_ > 0;
  return {tokens, of_longest ? causal_size() : size_for(std::max<int64_t>(length, 1)),
          causal};
}

std::vector<Extent> PatternAttention::extents(const Pass& pass, int64_t tokens) const {
  const auto of_length = [&](int64_t length) {
    return extent_of(tokens, length, pass.mask.causal);
  };
  const Extent whole = of_length(tokens);
  const Tensor& mask = pass.mask.tokens;
  if (whole.size == 0 || !mask.defined() || mask.numel() == 0) return {whole};
  const Tensor real = mask.to(torch::kCPU, torch::kLong);
  const Tensor lengths =
      (real * torch::arange(1, tokens + 1, torch::kLong)).amax(1, /*keepdim=*/false);
  std::vector<Extent> all;
  for (int64_t example = 0; example < lengths.size(0); ++example)
    all.push_back(of_length(lengths[example].item<int64_t>()));
  if (std::ranges::all_of(all, [&](const Extent& one) { return one == all.front(); }))
    all.resize(1);
  return all;
}

Tensor PatternAttention::run(const Tensor& q, const Tensor& k, const Tensor& v,
                             Pass& pass) {
  if (pass.state) return step(q, k, v, pass);
  const int64_t tokens = q.size(2);
  const Prepared prepared = prepare(q, k, v, pass);
  const auto& [queries, source, options, global, unused] = prepared;
  std::vector<std::shared_ptr<const std::vector<Laid>>> all;
  for (const Extent& extent : extents(pass, tokens)) all.push_back(laid(extent));
  const auto examples = static_cast<int64_t>(all.size());
  const auto parts = static_cast<size_t>(all.front()->size());
  const Tensor globals =
      global.defined() && global.numel() > 0 ? flagged_rows(global) : Tensor();
  const bool has_global = globals.defined() && globals.size(2) > 0;

  std::vector<Attended> results;
  for (size_t part = 0; part < parts; ++part) {
    std::vector<Tiles> tiles;
    std::vector<Tensor> rows;
    Layout::Choice choice{
        .examples = examples,
        .heads = static_cast<int64_t>((*all.front())[part].of_head.size()),
        .pattern = {}};
    std::map<const void*, int32_t> first_of;  // where the tiles of a layout begin
    for (const auto& layout : all) {
      const Laid& mine = (*layout)[part];
      const auto [at, is_new] =
          first_of.emplace(layout.get(), static_cast<int32_t>(tiles.size()));
      if (is_new) tiles.insert(tiles.end(), mine.tiles.begin(), mine.tiles.end());
      for (const int32_t pattern : mine.of_head)
        choice.pattern.push_back(at->second + pattern);
      rows.push_back(mine.rows);
    }
    Queries these = queries;
    Source those = source;
    those.layout = Layout(std::move(tiles), std::move(choice));
    if (std::ranges::any_of(rows, [](const Tensor& x) { return x.defined(); })) {
      const Tensor in_place = torch::arange(tokens, torch::kLong).unsqueeze(0);
      const auto heads = static_cast<int64_t>(those.layout->choice().heads);
      for (Tensor& mine : rows)
        mine = (mine.defined() ? mine : in_place).expand({heads, -1});
      these.rows = those.rows = torch::stack(rows).to(q.device());
      those.rows_once = true;
    }
    std::vector<Source> sources = {those};
    if (has_global) sources[0].to = hidden_where(global, source.to);
    if (has_global && part == 0) {
      Source columns = source;
      columns.rows = globals;
      if (pass.mask.causal)
        columns.from = torch::arange(tokens, q.options().dtype(torch::kLong));
      sources.push_back(std::move(columns));
    }
    results.push_back(block_attention(these, sources, options));
  }
  const Tensor out = results.size() == 1 ? results[0].out : merge(results).out;
  if (!has_global || pass.mask.causal) return out;

  Queries rows = queries;
  Source everything = source;
  rows.rows = globals;
  if (pass.global.q.defined()) {
    require(pass.global.q.sizes() == q.sizes() && pass.global.k.sizes() == k.sizes() &&
                pass.global.v.sizes() == v.sizes(),
            "pass.global must have the shapes of q, k and v, ", shape(q), ", ",
            shape(k), " and ", shape(v), ", got ", shape(pass.global.q), ", ",
            shape(pass.global.k), " and ", shape(pass.global.v));
    rows.q = pass.global.q;
    everything.k = pass.global.k;
    everything.v = pass.global.v;
  }
  return torch::where(global.unsqueeze(1).unsqueeze(3),
                      block_attention(rows, {everything}, options).out, out);
}

Tensor PatternAttention::step(const Tensor& q, const Tensor& k, const Tensor& v,
                              Pass& pass) {
  Record& state = *pass.state;
  const int64_t examples = q.size(0), count = q.size(2), first = state.tokens,
                tokens = first + count;
  const Extent extent{tokens, causal_size(), /*causal=*/true};
  std::vector<int64_t> positions;  // of the keys
  if (const Tensor held = state.get("at"); held.defined()) {
    // Without examples any that ascend will do.
    const Tensor at = examples > 0 ? held[0].to(torch::kCPU).contiguous()
                                   : torch::arange(held.size(1), torch::kLong);
    positions.assign(at.data_ptr<int64_t>(), at.data_ptr<int64_t>() + at.numel());
  }
  for (int64_t token = first; token < tokens; ++token) positions.push_back(token);
  auto [queries, source, options, global, unused] = prepare(q, k, v, pass);

  // The keys that the new tokens see, by pattern and token.
  const StepKeys keys(positions);
  const auto [distinct, of_head] = patterns(extent);
  std::vector<std::vector<std::vector<Span>>> seen;
  std::vector<Span> any;
  for (const auto& pattern : distinct) {
    auto& of_tokens = seen.emplace_back();
    for (int64_t token = first; token < tokens; ++token) {
      std::vector<Span> spans;
      for (const auto& part : pattern) part.keys(token, spans);
      of_tokens.push_back(keys.places(spans));
      any.insert(any.end(), of_tokens.back().begin(), of_tokens.back().end());
    }
  }
  tidy(any, static_cast<int64_t>(positions.size()));
  const std::vector<int64_t> read = listed(any);
  const StepKeys reads(read);
  std::vector<Pattern> steps;
  for (const auto& of_tokens : seen)
    steps.push_back([&](int64_t query, std::vector<Span>& spans) {
      const auto mine = reads.places(of_tokens[static_cast<size_t>(query)]);
      spans.insert(spans.end(), mine.begin(), mine.end());
    });

  const Tensor at = tensor_of(positions).to(q.device());
  const auto held_of = [&](Tensor& of_keys) {
    if (of_keys.defined()) of_keys = of_keys.index_select(-1, at);
  };
  if (static_cast<int64_t>(positions.size()) < tokens) {
    held_of(source.bias.column);
    held_of(source.bias.labels);
    held_of(source.bias.dense);
  }
  source.positions = at;
  Source columns = source;
  source.layout =
      Layout(count, static_cast<int64_t>(read.size()), steps,
             {.heads = static_cast<int64_t>(of_head.size()), .pattern = of_head});
  source.rows = tensor_of(read).to(q.device());
  std::vector<Source> sources = {source};
  std::vector<Span> needed;
  kept()(tokens, needed);
  std::vector<Span> kept_places = keys.places(needed);
  if (global.defined() && global.any().item<bool>()) {
    sources[0].to = hidden_where(global, source.to);
    columns.rows = flagged_rows(global);
    columns.from = at;
    sources.push_back(columns);
    const Tensor of_any = global.any(0).to(torch::kCPU);
    for (int64_t place = 0; place < of_any.size(0); ++place)
      if (of_any[place].item<bool>()) kept_places.push_back({place, place + 1});
  }
  const Tensor out = block_attention(queries, sources, options).out;

  tidy(kept_places, static_cast<int64_t>(positions.size()));
  const Tensor kept = tensor_of(listed(kept_places));
  if (kept.size(0) < static_cast<int64_t>(positions.size())) keep_keys(state, kept);
  state.set("at", at.index_select(0, kept.to(at.device())).expand({examples, -1}));
  return out;
}

Tensor PatternAttention::define(const Tensor& q, const Tensor& k, const Tensor& v,
                                Pass& pass) {
  const int64_t tokens = q.size(2);
  Pass open = pass;  // causality is in the pattern
  open.mask.causal = false;
  const Tensor allowed = allowed_pairs(open, tokens, tokens, q.device());
  std::vector<Tensor> all;
  for (const Extent& extent : extents(pass, tokens)) all.push_back(visible(extent));
  Tensor seen = torch::stack(all).to(q.device());
  if (!pass.mask.global.defined())
    return masked_attention(q, k, v, seen.logical_and(allowed), pass);

  const Tensor global = pass.mask.global.to(q.device());  // [B, N]
  Tensor columns = global.unsqueeze(1).unsqueeze(1);
  if (pass.mask.causal) {
    const Positions at(tokens);
    columns = columns.logical_and((at.key <= at.query).to(q.device()));
  }
  const Tensor out =
      masked_attention(q, k, v, seen.logical_or(columns).logical_and(allowed), pass);
  if (pass.mask.causal) return out;
  const Heads rows = pass.global.q.defined() ? pass.global : Heads{q, k, v};
  return torch::where(global.unsqueeze(1).unsqueeze(3),
                      masked_attention(rows.q, rows.k, rows.v, allowed, pass), out);
}

Sight PatternAttention::sight(int64_t tokens, bool causal) {
  return {.pairs = visible(extent_of(tokens, tokens, causal)).to(torch::kByte)};
}

}  // namespace longspan
