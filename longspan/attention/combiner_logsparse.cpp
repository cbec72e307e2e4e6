// The bits of a position cut the tokens before it into spans of powers of two: a token
// sees itself, and the summaries of those spans. Ren et al. 2021, arXiv:2107.05768,
// "Combiner-Logsparse". Token 22 = 16 + 4 + 2 sees 0..15, 16..19, 20..21 and itself.
//
// The bidirectional form sees in addition the mirror image in a sequence of a power of
// two of tokens: 23, 24..31, 32..63 and so on. Which power makes no difference, so
// padding makes none.
//
// Spans inside a block of 16 tokens are near, the others far. The value of a far span
// is put together from those of its blocks: so the queries of all spans that have
// tokens of a block meet these at once.

#include <algorithm>
#include <bit>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/attention/combiner.h"
#include "longspan/attention/head_axis.h"
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

  int64_t size() const { return q.size(2); }

  Pools slice(int64_t from, int64_t to, int64_t step = 1) const {
    return {.q = q.slice(2, from, to, step),
            .k = k.slice(2, from, to, step),
            .count = count.defined() ? count.slice(1, from, to, step) : count};
  }

  static Pools joined(const std::vector<Pools>& parts) {
    std::vector<Tensor> q, k, count;
    for (const Pools& part : parts) {
      q.push_back(part.q);
      k.push_back(part.k);
      if (part.count.defined()) count.push_back(part.count);
    }
    return {.q = torch::cat(q, 2),
            .k = torch::cat(k, 2),
            .count = count.empty() ? Tensor() : torch::cat(count, 1)};
  }

  // Of neighbours together, from the largest or the sums of each. One without a
  // neighbour stays as it is, or is left out.
  Pools of_pairs(Pooling how, bool with_last) const {
    const int64_t size = with_last ? this->size() : this->size() / 2 * 2;
    const Pools some = slice(0, size);
    const std::vector<Span> pairs = equal_spans(size, 2, 2);
    const Tensor keep = count.defined() ? (some.count > 0).unsqueeze(1) : Tensor();
    const auto pooled = [&](const Tensor& x) {
      return pool_spans({.x = x, .keep = keep}, pairs,
                        how == Pooling::mean ? Pooling::sum : how)
          .out;
    };
    Pools result{.q = pooled(some.q), .k = pooled(some.k)};
    if (count.defined())
      result.count = torch::constant_pad_nd(some.count, {0, size % 2})
                         .unflatten(1, {(size + 1) / 2, 2})
                         .sum(2);
    return result;
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
  Laid(const Steps& steps, int least)
      : steps_(steps),
        least_(least),
        near_of_block_(((kBlock >> least) - 1) * (steps.causal ? 1 : 2) + 1) {
    lay_near();
    lay_far();
    lay_values();
  }

  // Near spans, of tokens from steps.begin() on: of each block the block itself, then
  // those inside. So a block is every so many rows.
  std::vector<Span> near_spans;
  int64_t near_of_block() const { return near_of_block_; }
  // The rows of the blocks of each new far span, level by level.
  std::vector<Span> far_blocks;
  // Places of the rows of near spans and of the blocks of far ones, and which of the
  // keys from here on they have.
  int64_t first_key = 0;
  Tensor value_rows;
  std::optional<Layout> of_values;
  // What tokens see: keys from here on, near spans, and far ones, those from before
  // and the new ones, in the places `far_rows`.
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
    const auto push = [&](Span span) {
      near_spans.push_back({span.from - begin, std::min(span.to, tokens) - begin});
    };
    for (int64_t block = begin; block < tokens; block += kBlock) {
      push({block, block + kBlock});
      for (int64_t place = block + unit; place < block + kBlock; place += unit) {
        if (place > steps_.last_place()) break;
        push(Mark{place, false}.span());
        if (!causal) push(Mark{place, true}.span());
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

  void lay_far() {
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
    marks.insert(marks.end(), fresh_.begin(), fresh_.end());

    std::vector<std::pair<Mark, int64_t>> sorted;
    for (const Mark& mark : marks)
      sorted.emplace_back(mark, static_cast<int64_t>(sorted.size()));
    std::ranges::sort(sorted);
    const auto place_of = [&](const Mark& mark) {
      return std::ranges::lower_bound(sorted, std::pair(mark, int64_t{0})) -
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
    std::vector<int64_t> rows, later;
    for (const auto& [mark, row] : sorted) rows.push_back(row);
    far_rows = tensor_of(rows);
    if (decoding)
      waiting_at(steps_.tokens(), [&](const Mark& mark) {
        later.push_back(rows[static_cast<size_t>(place_of(mark))]);
      });
    kept = tensor_of(later);
  }

  void lay_values() {
    const int64_t begin = steps_.begin(), tokens = steps_.tokens();
    std::vector<Span> keys;  // of every row
    std::map<int64_t, std::vector<int64_t>> rows_of_block;
    for (const Span& span : near_spans) {
      const auto row = static_cast<int64_t>(keys.size());
      keys.push_back({begin + span.from, begin + span.to});
      if (row % near_of_block_ > 0)
        rows_of_block[keys.back().from / kBlock].push_back(row);
    }
    for (const Mark& mark : fresh_) {
      const auto [from, to] = mark.span();
      const auto push = [&](int64_t block, int64_t row) {
        if (block < tokens) rows_of_block[block / kBlock].push_back(row);
      };
      if (to - from == kBlock) {
        const int64_t row = (from - begin) / kBlock * near_of_block_;
        far_blocks.push_back({row, row + 1});
        push(from, row);
        continue;
      }
      const auto row = static_cast<int64_t>(keys.size());
      far_blocks.push_back({row, row + (to - from) / kBlock});
      for (int64_t block = from; block < to; block += kBlock) {
        push(block, static_cast<int64_t>(keys.size()));
        keys.push_back({block, block + kBlock});
      }
    }
    std::vector<int64_t> places;
    for (const auto& [block, rows] : rows_of_block) {
      places.resize(blocks_of(static_cast<int64_t>(places.size())) * kBlock, -1);
      places.insert(places.end(), rows.begin(), rows.end());
    }
    first_key = rows_of_block.empty() ? tokens : rows_of_block.begin()->first * kBlock;
    value_rows = tensor_of(places);
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
    const std::shared_ptr<const Laid> laid = this->laid(steps);
    Tensor all = q;  // of the tokens from steps.begin() on
    if (pass.state) {
      if (pass.state->get("q").defined())
        all = torch::cat({pass.state->get("q"), q}, 2);
      pass.state->set("q", all.slice(2, all.size(2) / kBlock * kBlock));
    }
    const Source keys = from(source, steps.begin());
    const Tensor real = keys.to.defined() ? keys.to.squeeze(1) > 0 : Tensor();
    const Pools near = near_pools(steps, *laid, all, keys.k, real);
    const std::vector<Pools> far = far_pools(steps, *laid, near, pass.state);
    auto [seen_near, seen_far] = summaries(*laid, near, far, source);
    if (pass.state) {
      Record& state = pass.state->part("summaries");
      seen_far = seen_far.joined(state);
      const Tensor kept = laid->kept.to(q.device());
      state.set("k", seen_far.k.index_select(2, kept));
      state.set("v", seen_far.v.index_select(2, kept));
      state.set("valid", seen_far.valid.index_select(1, kept));
    }

    std::vector<Source> sources = {from(source, laid->first_own),
                                   seen_near.source(*laid->near),
                                   seen_far.source(*laid->far)};
    sources[0].layout = laid->own;
    sources[2].rows = laid->far_rows.to(q.device());
    sources[2].rows_once = true;
    if (!real.defined()) sources[1].to = sources[2].to = Tensor();  // all are valid
    return block_attention(queries, sources, options).out;
  }

  // The keys from number `first` on.
  static Source from(const Source& keys, int64_t first) {
    return {.k = keys.k.slice(2, first),
            .v = keys.v.slice(2, first),
            .to = keys.to.defined() ? keys.to.slice(2, first) : Tensor()};
  }

  // Of laid.near_spans, by queries and keys from steps.begin() on and which of these
  // are `real` [B, n], undefined: all. The counts are of far blocks, and left out where
  // nothing asks for them.
  Pools near_pools(const Steps& steps, const Laid& laid, const Tensor& q,
                   const Tensor& k, const Tensor& real) const {
    const auto pooled = [&](const Tensor& x) {
      const Tensor keep = real.defined() ? real.unsqueeze(1) : real;
      return pool_spans({.x = x, .keep = keep}, laid.near_spans, pooling().how()).out;
    };
    Pools pools{.q = pooled(pooling().of_queries(q)),
                .k = pooled(pooling().of_keys(k))};
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

  // Of the new far spans, level by level. The state has the pools of those that wait
  // for their neighbour, one for every bit of the number of blocks.
  std::vector<Pools> far_pools(const Steps& steps, const Laid& laid, const Pools& near,
                               Record* state) const {
    const int64_t first = steps.first_block(), last = steps.last_place() / kBlock;
    Pools waiting;
    if (state && state->part("pools").get("q").defined()) {
      const Record& held = state->part("pools");
      waiting = {.q = held.get("q"), .k = held.get("k"), .count = held.get("count")};
    }
    const auto waits_at = [&](int level) {  // among `waiting`
      return std::popcount(static_cast<uint64_t>(first & ((int64_t{1} << level) - 1)));
    };
    const auto of_blocks = [&](const Tensor& x) {
      const int64_t each = laid.near_of_block();
      return sums(x.slice(2, 0, (steps.blocks() - first) * each, each), near.count);
    };
    Pools now{.q = of_blocks(near.q), .k = of_blocks(near.k), .count = near.count};
    std::vector<Pools> spans, kept = {now.slice(0, 0)};
    int level = 0;
    for (; last >> level > 0 && now.size() > 0; ++level) {
      const bool waited = bit(first, level);
      if (waited) {
        const int64_t at = waits_at(level);
        now = Pools::joined({waiting.slice(at, at + 1), now});
      }
      const int64_t begin = (first >> level) - waited, end = last >> level;
      spans.push_back(steps.causal ? now.slice(waited ? 2 : 0, end - begin, 2)
                                   : now.slice(0, (end + 1) / 2 * 2));
      if (bit(steps.blocks(), level))
        kept.push_back(now.slice(now.size() - 1, now.size()));
      now = now.of_pairs(pooling().how(), /*with_last=*/!steps.causal);
    }
    if (state) {
      if (waiting.q.defined())
        kept.push_back(waiting.slice(waits_at(level), waiting.size()));
      const Pools all = Pools::joined(kept);
      Record& held = state->part("pools");
      held.set("q", all.q);
      held.set("k", all.k);
      held.set("count", all.count);
    }
    return spans;
  }

  // Of near spans and of new far ones. Where `tokens` has no padding all are valid.
  std::pair<Summaries, Summaries> summaries(const Laid& laid, const Pools& near,
                                            const std::vector<Pools>& far,
                                            const Source& tokens) const {
    const auto type = near.q.scalar_type();
    const int64_t heads = near.q.size(1), near_count = near.size();
    std::vector<Tensor> asking = {near.q}, far_k = {near.k.slice(2, 0, 0)};
    for (size_t level = 0; level < far.size(); ++level) {
      const Pools& pools = far[level];
      far_k.push_back(of_sums(pools.k, pools.count, type));
      if (level == 0) continue;  // those are blocks, and among the near ones
      const Tensor q = of_sums(pools.q, pools.count, type).unsqueeze(3);
      auto shape = q.sizes().vec();
      shape[3] = int64_t{1} << level;
      asking.push_back(spread(q, shape).flatten(2, 3));
    }
    Source keys = from(tokens, laid.first_key);
    keys.layout = laid.of_values;
    const Attended values = block_attention(
        {.q = torch::cat(asking, 2), .rows = laid.value_rows.to(near.q.device())},
        {keys});
    const auto is_valid = [](const Tensor& lse) {
      return lse.detach() > -std::numeric_limits<double>::infinity();
    };
    const Tensor valid = is_valid(values.lse);
    const Pooled of_blocks =
        pool_spans({.x = values.out, .keep = valid, .scores = values.lse},
                   laid.far_blocks, Pooling::softmax);
    return {{.k = for_heads(near.k, heads),
             .v = values.out.slice(2, 0, near_count),
             .valid = valid.select(1, 0).slice(1, 0, near_count)},
            {.k = for_heads(torch::cat(far_k, 2), heads),
             .v = of_blocks.out,
             .valid = is_valid(of_blocks.lse.select(1, 0))}};
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

  std::shared_ptr<const Laid> laid(const Steps& steps) {
    if (steps.decoding) return std::make_shared<const Laid>(steps, least_);
    constexpr size_t kMost = 8;
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find(known_, steps, [](const auto& entry) { return entry.first; });
    if (found != known_.end()) {
      known_.splice(known_.begin(), known_, found);
    } else {
      known_.emplace_front(steps, std::make_shared<const Laid>(steps, least_));
      if (known_.size() > kMost) known_.pop_back();
    }
    return known_.front().second;
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
  std::mutex mutex_;
  // The last used is the first.
  std::list<std::pair<Steps, std::shared_ptr<const Laid>>> known_;
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
