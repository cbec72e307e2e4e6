// The bits of a position cut the tokens before it into spans of powers of two: a token
// sees itself, and the summaries of those spans. Ren et al. 2021, arXiv:2107.05768,
// "Combiner-Logsparse". Token 22 = 16 + 4 + 2 sees 0..15, 16..19, 20..21 and itself.
//
// The bidirectional form sees in addition the mirror image in a sequence of a power of
// two of tokens: 23, 24..31, 32..63 and so on. Which power makes no difference, so
// padding makes none, as a mirror at the last token would.
//
// Spans inside a block of 16 tokens are near, the others far. The value of a far span
// is put together from those of its blocks: so the queries of all spans that have
// tokens of a block meet these at once.

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/attention/combiner.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/kept.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// As many tokens as a vector has lanes: the queries that meet a block fill about one.
constexpr int kBlockLevel = 4;
constexpr int64_t kBlock = int64_t{1} << kBlockLevel;

int64_t blocks_of(int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

bool bit(int64_t number, int level) { return (number >> level & 1) == 1; }

int level_of(int64_t place) { return std::countr_zero(static_cast<uint64_t>(place)); }

// At a place that is an odd multiple of w, a power of two, end and begin two spans of w
// tokens. The one that ends there is seen by the w tokens from there on, the one that
// begins there by the w tokens before.
struct Mark {
  int64_t place;
  bool after;

  auto operator<=>(const Mark&) const = default;

  Span span() const {
    const int64_t width = int64_t{1} << level_of(place);
    return after ? Span{place, place + width} : Span{place - width, place};
  }
};

// The spans of levels least .. end - 1, of 2^level tokens, that token `query` sees.
template <class Use>
void each_seen(int64_t query, int least, int end, bool causal, int64_t tokens,
               const Use& use) {
  for (int level = least; level < end && query >> level > 0; ++level)
    if (bit(query, level)) use(Mark{query >> level << level, false});
  if (causal) return;
  for (int level = least; level < end; ++level) {
    const int64_t place = ((query >> level) + 1) << level;
    if (place >= tokens) break;
    if (!bit(query, level)) use(Mark{place, true});
  }
}

constexpr int kAllLevels = 62;

Tensor tensor_of(const std::vector<int64_t>& numbers) {
  return torch::tensor(numbers, torch::kLong);
}

// Spans, one after the other: what is pooled of their queries and keys.
struct Pools {
  Tensor q, k;        // [B, H | Hk, n, d]
  Tensor count = {};  // [B, n]: of real tokens; undefined: there are some in each

  Pools slice(int64_t from, int64_t to) const {
    return {.q = q.slice(2, from, to),
            .k = k.slice(2, from, to),
            .count = count.defined() ? count.slice(1, from, to) : count};
  }
};

// Some tokens of a sequence: all of them, or those of a step.
struct Steps {
  int64_t first, count;
  bool causal, decoding;

  bool operator==(const Steps&) const = default;

  int64_t tokens() const { return first + count; }
  // Spans that end at the last token are for later steps.
  int64_t last_place() const { return decoding ? tokens() : tokens() - 1; }
  int64_t first_block() const { return first / kBlock; }
  int64_t begin() const { return first_block() * kBlock; }
  // The blocks that can be in far spans.
  int64_t blocks() const { return causal ? tokens() / kBlock : blocks_of(tokens()); }
};

// What is known about steps before any tensor is.
class Laid {
 public:
  // `least`: the level of the least spans that have a summary.
  Laid(const Steps& steps, int least, torch::Device device)
      : steps_(steps),
        least_(least),
        near_of_block_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(
            ((kBlock >> least) - 1) * (steps.causal ? 1 : 2) + 1)))) {
    lay_near();
    lay_far(device);
    lay_pools();
    lay_values(device);
  }

  // Near spans, of tokens from steps.begin() on: of each block the block itself, then
  // those inside, then none, so that blocks lie evenly in tiles.
  std::vector<Span> near_spans;
  int64_t near_of_block() const { return near_of_block_; }
  // The new far spans, and those that wait for their neighbour after the steps: spans
  // of those that waited before, in the order of time, and then the blocks of the
  // steps.
  std::vector<Span> far_spans, waiting;
  // The rows that ask for values: the near spans, then with the query of a far span
  // each of its blocks; that of a single block is a near one. Of those blocks which far
  // span they are of, and the rows of every far span.
  std::vector<Span> asking, far_blocks;
  // Places of asking rows, block by block, and which of the keys from first_key on they
  // have.
  int64_t first_key = 0;
  Tensor asking_rows;
  std::optional<Layout> of_values;
  // What tokens see: keys from first_own on, near spans, and far ones. These are, if
  // the steps are all there is, the new ones; else those from before and the new ones,
  // in the places `far_rows`.
  int64_t first_own = 0;
  std::optional<Layout> own, near, far;
  Tensor far_rows;
  // Far spans that later steps see.
  Tensor kept;

 private:
  int64_t near_row(const Mark& mark) const {
    const int64_t inside = (mark.place % kBlock >> least_) - 1;
    return (mark.place / kBlock - steps_.first_block()) * near_of_block_ + 1 +
           (steps_.causal ? inside : 2 * inside + mark.after);
  }

  void lay_near() {
    const auto& [first, count, causal, decoding] = steps_;
    const int64_t begin = steps_.begin(), tokens = steps_.tokens(),
                  unit = int64_t{1} << least_;
    near_spans.resize(static_cast<size_t>((blocks_of(tokens) - steps_.first_block()) *
                                          near_of_block_));
    const auto put = [&](int64_t row, Span span) {
      near_spans[static_cast<size_t>(row)] = {span.from - begin,
                                              std::min(span.to, tokens) - begin};
    };
    for (int64_t block = begin; block < tokens; block += kBlock) {
      put((block - begin) / kBlock * near_of_block_, {block, block + kBlock});
      for (int64_t place = block + unit; place < block + kBlock; place += unit) {
        if (place > steps_.last_place()) break;
        for (const bool after : {false, true}) {
          const Mark mark{place, after};
          if (!after || !causal) put(near_row(mark), mark.span());
        }
      }
    }
    near.emplace(count, static_cast<int64_t>(near_spans.size()),
                 [&](int64_t query, std::vector<Span>& seen) {
                   each_seen(first + query, least_, kBlockLevel, causal, tokens,
                             [&](const Mark& mark) {
                               const int64_t row = near_row(mark);
                               seen.push_back({row, row + 1});
                             });
                 });
    // The span of one token is the token itself, if it has no summary.
    first_own = first / unit * unit;
    own.emplace(count, tokens - first_own, [&](int64_t query, std::vector<Span>& seen) {
      const int64_t at = first + query - first_own, from = at / unit * unit;
      seen.push_back({from, causal ? at + 1 : from + unit});
    });
  }

  // Where a far span lies: so that what a tile of tokens sees is in few tiles.
  static auto far_order(const Mark& mark) {
    constexpr int kLevelsOfTile = 5;
    return std::tuple((level_of(mark.place) - kBlockLevel) / kLevelsOfTile, mark.place,
                      mark.after);
  }

  void lay_far(torch::Device device) {
    const auto& [first, count, causal, decoding] = steps_;
    const int64_t begin = steps_.begin(), last = steps_.last_place();
    const auto waiting_at = [&](int64_t token, const auto& use) {
      each_seen(token / kBlock * kBlock, kBlockLevel, kAllLevels,
                /*causal=*/true, steps_.tokens(), use);
    };
    std::vector<Mark> marks;
    waiting_at(first, [&](const Mark& mark) { marks.push_back(mark); });
    for (int level = kBlockLevel; last >> level > 0; ++level) {
      const int64_t width = int64_t{1} << level;
      int64_t place = begin / (2 * width) * (2 * width) + width;
      for (; place <= last; place += 2 * width) {
        if (place > begin) fresh_.push_back({place, false});
        if (!causal) fresh_.push_back({place, true});
      }
    }
    std::ranges::sort(fresh_, {}, far_order);
    marks.insert(marks.end(), fresh_.begin(), fresh_.end());

    std::vector<std::pair<Mark, int64_t>> sorted;
    for (const Mark& mark : marks)
      sorted.emplace_back(mark, static_cast<int64_t>(sorted.size()));
    const auto order_of = [](const auto& entry) { return far_order(entry.first); };
    std::ranges::sort(sorted, {}, order_of);
    const auto place_of = [&](const Mark& mark) {
      return std::ranges::lower_bound(sorted, far_order(mark), {}, order_of) -
             sorted.begin();
    };
    far.emplace(count, static_cast<int64_t>(sorted.size()),
                [&](int64_t query, std::vector<Span>& seen) {
                  each_seen(first + query, kBlockLevel, kAllLevels, causal,
                            steps_.tokens(), [&](const Mark& mark) {
                              const int64_t place = place_of(mark);
                              seen.push_back({place, place + 1});
                            });
                });
    if (!decoding) return;
    std::vector<int64_t> rows, later;
    for (const auto& [mark, row] : sorted) rows.push_back(row);
    far_rows = tensor_of(rows).to(device);
    waiting_at(steps_.tokens(), [&](const Mark& mark) {
      later.push_back(rows[static_cast<size_t>(place_of(mark))]);
    });
    kept = tensor_of(later).to(device);
  }

  void lay_pools() {
    const int64_t first = steps_.first_block(), end = steps_.blocks();
    const int waited = std::popcount(static_cast<uint64_t>(first));
    // Before the steps a span begins or ends where one that waited does: after one for
    // each bit.
    const auto row_of = [&](int64_t block) {
      return block < first ? int64_t{std::popcount(static_cast<uint64_t>(block))}
                           : waited + std::min(block, end) - first;
    };
    for (const Mark& mark : fresh_) {
      const auto [from, to] = mark.span();
      far_spans.push_back({row_of(from / kBlock), row_of(blocks_of(to))});
    }
    if (!steps_.decoding) return;
    int64_t from = 0;
    for (int level = kAllLevels; level >= 0; --level) {
      if (!bit(end, level)) continue;
      const int64_t to = from + (int64_t{1} << level);
      waiting.push_back({row_of(from), row_of(to)});
      from = to;
    }
  }

  void lay_values(torch::Device device) {
    const int64_t begin = steps_.begin(), tokens = steps_.tokens();
    std::vector<Span> keys;  // of every row
    std::map<int64_t, std::vector<int64_t>> rows_of_block;
    const auto push = [&](int64_t row) {
      rows_of_block[keys[static_cast<size_t>(row)].from / kBlock].push_back(row);
    };
    for (const Span& span : near_spans) {
      const auto row = static_cast<int64_t>(keys.size());
      keys.push_back({begin + span.from, begin + span.to});
      if (row % near_of_block_ > 0 && span.from < span.to) push(row);
    }
    for (size_t number = 0; number < fresh_.size(); ++number) {
      const auto [from, to] = fresh_[number].span();
      if (to - from == kBlock) {
        const int64_t row = (from - begin) / kBlock * near_of_block_;
        far_blocks.push_back({row, row + 1});
        push(row);
        continue;
      }
      const auto span = static_cast<int64_t>(number);
      const auto row = static_cast<int64_t>(keys.size());
      for (int64_t at = from; at < std::min(to, tokens); at += kBlock) {
        keys.push_back({at, at + kBlock});
        asking.push_back({span, span + 1});
        push(static_cast<int64_t>(keys.size()) - 1);
      }
      far_blocks.push_back({row, static_cast<int64_t>(keys.size())});
    }
    constexpr size_t kAligned = 8;  // so that few vectors meet more than two blocks
    std::vector<int64_t> places;
    for (const auto& [block, rows] : rows_of_block) {
      places.resize((places.size() + kAligned - 1) / kAligned * kAligned, -1);
      places.insert(places.end(), rows.begin(), rows.end());
    }
    first_key = rows_of_block.empty() ? tokens : rows_of_block.begin()->first * kBlock;
    asking_rows = tensor_of(places).to(torch::kInt).to(device);
    of_values.emplace(static_cast<int64_t>(places.size()), tokens - first_key,
                      [&](int64_t place, std::vector<Span>& seen) {
                        const int64_t row = places[static_cast<size_t>(place)];
                        if (row < 0) return;
                        const auto [from, to] = keys[static_cast<size_t>(row)];
                        seen.push_back({from - first_key, to - first_key});
                      });
  }

  Steps steps_;
  int least_;
  int64_t near_of_block_;
  std::vector<Mark> fresh_;  // new far spans
};

class CombinerLogSparse final : public Combiner {
 public:
  CombinerLogSparse(const Settings& settings, const Sizes& sizes)
      : Combiner(settings, sizes), least_(pooling().has_layers() ? 0 : 1) {}

  static int64_t state_size(const Settings&, const Sizes& sizes, int64_t tokens) {
    const int64_t query = sizes.heads * sizes.head_width,
                  pools = query + sizes.key_heads * sizes.head_width + 1,
                  summary = query + sizes.heads * sizes.value_width + 1;
    return PatternAttention::numbers_kept(tokens, sizes) + tokens % kBlock * query +
           std::bit_width(static_cast<uint64_t>(tokens / kBlock)) * (pools + summary);
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    auto& [queries, source, options, global, order] = prepared;
    const Steps steps{.first = queries.first,
                      .count = q.size(2),
                      .causal = pass.mask.causal,
                      .decoding = pass.state != nullptr};
    const std::shared_ptr<const Laid> laid = this->laid(steps, q.device());
    Tensor all = q;  // of the tokens from steps.begin() on
    if (pass.state) {
      if (pass.state->get("q").defined())
        all = torch::cat({pass.state->get("q"), q}, 2);
      pass.state->set("q", all.slice(2, all.size(2) / kBlock * kBlock));
    }
    const Source keys = from(source, steps.begin());
    const Tensor real = keys.to.defined() ? keys.to.squeeze(1) > 0 : Tensor();
    const Pools near = near_pools(steps, *laid, all, keys.k, real);
    const Pools far = far_pools(steps, *laid, near, pass.state);
    auto [seen_near, seen_far] =
        summaries(*laid, near, far, from(source, laid->first_key));
    if (pass.state) {
      Record& state = pass.state->part("summaries");
      seen_far = seen_far.joined(state);
      state.set("k", seen_far.k.index_select(2, laid->kept));
      state.set("v", seen_far.v.index_select(2, laid->kept));
      state.set("valid", seen_far.valid.index_select(1, laid->kept));
    }

    std::vector<Source> sources = {from(source, laid->first_own),
                                   seen_near.source(*laid->near),
                                   seen_far.source(*laid->far)};
    sources[0].layout = laid->own;
    sources[2].rows = laid->far_rows;
    sources[2].rows_once = true;
    return block_attention(queries, sources, options).out;
  }

  // The keys from number `first` on.
  static Source from(const Source& keys, int64_t first) {
    return {.k = keys.k.slice(2, first),
            .v = keys.v.slice(2, first),
            .to = keys.to.defined() ? keys.to.slice(2, first) : Tensor()};
  }

  // Of laid.near_spans, by queries and keys from steps.begin() on and which of these
  // are `real` [B, n], undefined: all. The counts are of blocks that can be in far
  // spans, and left out where nothing asks for them.
  Pools near_pools(const Steps& steps, const Laid& laid, const Tensor& q,
                   const Tensor& k, const Tensor& real) const {
    Pools pools{.q = pooling().pooled(pooling().of_queries(q), real, laid.near_spans),
                .k = pooling().pooled(pooling().of_keys(k), real, laid.near_spans)};
    if (!real.defined() && !steps.decoding && pooling().how() == Pooling::max)
      return pools;
    const auto whole = q.options().dtype(torch::kLong);
    const Tensor counted = real.defined() ? real.to(torch::kLong)
                                          : torch::ones({q.size(0), q.size(2)}, whole);
    const int64_t blocks = blocks_of(q.size(2));
    pools.count = torch::constant_pad_nd(counted, {0, blocks * kBlock - q.size(2)})
                      .unflatten(1, {blocks, kBlock})
                      .sum(2)
                      .slice(1, 0, steps.blocks() - steps.first_block());
    return pools;
  }

  // Of the new far spans. The state has the pools of those that wait for their
  // neighbour, one for every bit of the number of blocks.
  Pools far_pools(const Steps& steps, const Laid& laid, const Pools& near,
                  Record* state) const {
    const int64_t each = laid.near_of_block(),
                  blocks = steps.blocks() - steps.first_block();
    const auto of_blocks = [&](const Tensor& x) {
      return sums(x.slice(2, 0, blocks * each, each), near.count);
    };
    Pools rows{.q = of_blocks(near.q), .k = of_blocks(near.k), .count = near.count};
    std::vector<Span> spans = laid.far_spans;
    if (state) {
      if (const Record& held = state->part("pools"); held.get("q").defined())
        rows = {.q = torch::cat({held.get("q"), rows.q}, 2),
                .k = torch::cat({held.get("k"), rows.k}, 2),
                .count = torch::cat({held.get("count"), rows.count}, 1)};
      spans.insert(spans.end(), laid.waiting.begin(), laid.waiting.end());
    }
    const auto together = [&](const Tensor& x) {
      const PoolInputs inputs{
          .x = x,
          .keep = rows.count.defined() ? (rows.count > 0).unsqueeze(1) : Tensor()};
      return pool_spans(
                 inputs, spans,
                 pooling().how() == Pooling::mean ? Pooling::sum : pooling().how())
          .out;
    };
    Pools far{.q = together(rows.q), .k = together(rows.k)};
    if (rows.count.defined()) {
      const Tensor until =
          torch::constant_pad_nd(rows.count.cumsum(1), {1, 0});  // of the rows before
      std::vector<int64_t> begins, ends;
      for (const auto& [from, to] : spans) {
        begins.push_back(from);
        ends.push_back(to);
      }
      const auto at = [&](const std::vector<int64_t>& places) {
        return until.index_select(1, tensor_of(places).to(until.device()));
      };
      far.count = at(ends) - at(begins);
    }
    if (!state) return far;
    const auto fresh = static_cast<int64_t>(laid.far_spans.size());
    const auto all = static_cast<int64_t>(spans.size());
    const Pools waiting = far.slice(fresh, all);
    Record& held = state->part("pools");
    held.set("q", waiting.q);
    held.set("k", waiting.k);
    held.set("count", waiting.count);
    return far.slice(0, fresh);
  }

  // Of near spans and of new far ones, by the tokens from laid.first_key on. Where
  // these have no padding all are valid.
  std::pair<Summaries, Summaries> summaries(const Laid& laid, const Pools& near,
                                            const Pools& far, Source tokens) const {
    const auto type = tokens.k.scalar_type();
    const int64_t heads = near.q.size(1), near_count = near.q.size(2);
    const bool is_padded = tokens.to.defined();
    const Tensor of_far =
        pool_spans({.x = of_sums(far.q, far.count, type)}, laid.asking, Pooling::sum)
            .out;
    tokens.layout = laid.of_values;
    const Attended values = block_attention(
        {.q = torch::cat({near.q, of_far}, 2), .rows = laid.asking_rows}, {tokens});
    const auto is_valid = [](const Tensor& lse) {
      return lse.detach() > -std::numeric_limits<double>::infinity();
    };
    const Tensor valid = is_padded ? is_valid(values.lse) : Tensor();
    const Pooled of_blocks =
        pool_spans({.x = values.out, .keep = valid, .scores = values.lse},
                   laid.far_blocks, Pooling::softmax);
    Summaries of_near{.k = for_heads(near.k, heads),
                      .v = values.out.slice(2, 0, near_count)};
    Summaries of_spans{.k = for_heads(of_sums(far.k, far.count, type), heads),
                       .v = of_blocks.out};
    if (is_padded) {
      of_near.valid = valid.select(1, 0).slice(1, 0, near_count);
      of_spans.valid = is_valid(of_blocks.lse.select(1, 0));
    }
    return {of_near, of_spans};
  }

  // What is pooled of spans of `count` tokens, as it is put together: means as sums.
  Tensor sums(const Tensor& x, const Tensor& count) const {
    if (pooling().how() != Pooling::mean) return x;
    const Tensor wide = at_least_float(x);
    return wide * count.to(wide.scalar_type()).unsqueeze(1).unsqueeze(3);
  }

  Tensor of_sums(const Tensor& x, const Tensor& count, torch::Dtype type) const {
    if (pooling().how() != Pooling::mean) return x;
    const Tensor tokens = count.clamp_min(1).to(x.scalar_type());
    return (x / tokens.unsqueeze(1).unsqueeze(3)).to(type);
  }

  std::shared_ptr<const Laid> laid(const Steps& steps, torch::Device device) {
    if (steps.decoding) return std::make_shared<const Laid>(steps, least_, device);
    return laid_.get({steps, device}, [&] { return Laid(steps, least_, device); });
  }

  std::vector<Plan> plans(int64_t tokens, bool causal) const override {
    const Positions at(tokens);
    std::vector<Tensor> members = {torch::zeros({0, tokens}, torch::kBool)},
                        spans = {torch::zeros({tokens, 0}, torch::kBool)};
    for (int64_t width = 1; width < tokens; width *= 2) {
      const auto number = [&](const Tensor& x) {
        return torch::div(x, width, "floor");
      };
      const Tensor span = torch::arange((tokens + width - 1) / width);
      const Tensor mine = number(at.query), odd = mine.remainder(2) == 1;
      const Tensor before = odd & (span == mine - 1);
      const Tensor after = odd.logical_not() & (span == mine + 1);
      members.push_back(span.unsqueeze(1) == number(at.key));
      spans.push_back(causal ? before : before | after);
    }
    return {{.direct = at.query == at.key,
             .members = torch::cat(members),
             .spans = torch::cat(spans, 1)}};
  }

  int least_;  // the level of the least spans that have a summary
  Kept<std::pair<Steps, torch::Device>, Laid> laid_;
};

constexpr Setting kSettings[] = {kSummary};

}  // namespace

constinit const Mechanism catalogue::combiner_logsparse{
    .name = "combiner_logsparse",
    .summary = "the summaries of about log N spans of powers of two",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "fixed patterns, low rank",
    .time = {"N*log(N)*d", 1},
    .memory = {"N*d", 1},
    .can = kCombinerAbilities,
    .state =
        "keys and values of all tokens, queries of up to 15, and log2(N) "
        "summaries "
        "with what is pooled for them",
    .state_size = CombinerLogSparse::state_size,
    .full = true,
    .settings = kSettings,
    .test_settings = "{summary: deepsets_mean}",
    .make = made_as<Attention, CombinerLogSparse>(),
};

}  // namespace longspan
