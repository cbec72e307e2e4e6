// Blocks of tokens, softly put in another order: a block sees itself and, in the same
// softmax, the block that is sorted to its place. Tay et al. 2020, arXiv:2002.11296.
//
// A row of the sort matrix is a place, a column a block; blocks without real tokens are
// neither. Logits are of the mean query at the place and the mean key of the block, or
// learned from both. A token of a sorted block is the mean of the tokens at its place
// in all blocks, by the row's weights; tokens that are padding are left out of it.
//
// Causal: a place knows the mean of what comes before it and is given past blocks only;
// columns are summed over the rows so far.
//
// SortCut (`cut`): all queries see the blocks sorted to the first places. Over a
// context a place is the choice of one more block, the best for the mean of all
// queries.

#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/pool.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/sinkhorn.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// A token of a sorted block of whose weights a smaller part is on real tokens is none.
constexpr double kLeastShare = 1e-6;

// How many sorted blocks all queries see over a context, unless `cut` says it.
constexpr int64_t kCutOfContext = 2;

// Softmax over rows; 0 in rows without a finite logit.
Tensor row_weights(const Tensor& logits) {
  return balanced(logits, {.iterations = 0, .rows_last = true});
}

// `x` where `real` [B, n] of its axis, [B, h, n, m] along 2 or 3.
Tensor where_real(const Tensor& x, const Tensor& real, int64_t axis) {
  return x.masked_fill(real.logical_not().unsqueeze(1).unsqueeze(axis == 2 ? 3 : 2),
                       kNothing);
}

// Numbers [B|1, 1, P, 1] of the tokens in each span that are `real` [B, n], undefined:
// all.
Tensor counts_in(const std::vector<Span>& spans, const Tensor& real,
                 const torch::TensorOptions& options) {
  if (real.defined())
    return pool_spans({.x = real.to(options.dtype()).unsqueeze(1).unsqueeze(3)}, spans,
                      Pooling::sum)
        .out;
  std::vector<double> counts;
  for (const auto& [from, to] : spans) counts.push_back(static_cast<double>(to - from));
  return torch::tensor(counts, options).view({1, 1, -1, 1});
}

// Means over the real tokens of each span, [B, h, P, d], float or double.
Tensor means_in(const std::vector<Span>& spans, const Tensor& x, const Tensor& real) {
  return at_least_float(
      pool_spans({.x = x, .keep = real.defined() ? real.unsqueeze(1) : real}, spans,
                 Pooling::mean)
          .out);
}

// From means and counts of pieces to what came before each piece and before the end:
// sums and numbers of tokens, [B, h, P + 1, d + 1]. past: [B, h, 1, d + 1], of before
// the first, or undefined.
Tensor totals_before(const Tensor& means, const Tensor& counts, const Tensor& past) {
  const int64_t examples = means.size(0), heads = means.size(1), pieces = means.size(2),
                width = means.size(3);
  const Tensor sums =
      torch::cat({means * counts, counts.expand({examples, heads, pieces, 1})}, 3);
  const Tensor start =
      past.defined() ? past
                     : torch::zeros({examples, heads, 1, width + 1}, means.options());
  return pool_prefixes({.x = torch::cat({start, sums}, 2)}, 0, Pooling::sum).out;
}

Tensor means_of(const Tensor& totals) {
  const int64_t width = totals.size(3) - 1;
  return totals.slice(3, 0, width) / totals.slice(3, width).detach().clamp_min(1);
}

// Keys and values in whole blocks, 0 where nothing is real.
struct Blocks {
  Tensor k, v;  // [B, Hk, blocks, size*w]
  Tensor real;  // [B, blocks, size] bool; undefined: all tokens are

  // real_tokens: [B, n] of the keys, or undefined.
  Blocks(const Source& keys, const Tensor& real_tokens, int64_t blocks, int64_t size) {
    const int64_t examples = keys.k.size(0), tokens = keys.k.size(2),
                  end = blocks * size;
    const auto in_blocks = [&](const Tensor& x) {
      Tensor y = x;
      if (real_tokens.defined())
        y = y.masked_fill(real_tokens.logical_not().unsqueeze(1).unsqueeze(3), 0);
      y = end > tokens ? torch::constant_pad_nd(y, {0, 0, 0, end - tokens})
                       : y.slice(2, 0, end);
      return y.reshape({examples, x.size(1), blocks, size * x.size(3)});
    };
    k = in_blocks(keys.k);
    v = in_blocks(keys.v);
    if (!real_tokens.defined() && end <= tokens) return;
    real = real_tokens.defined()
               ? real_tokens
               : torch::ones({examples, tokens}, k.options().dtype(torch::kBool));
    real =
        torch::constant_pad_nd(real, {0, end - tokens}).view({examples, blocks, size});
  }

  Tensor any() const { return real.any(2); }  // [B, blocks]
};

// Sorted blocks.
struct Sorted {
  Tensor k = {}, v = {};  // [B, H, rows*size, w]
  Tensor real = {};       // [B, H, rows*size] bool, or undefined

  Source source() const {
    Source source{.k = k, .v = v};
    if (real.defined()) source.to = open_where(real.flatten(0, 1)).view(real.sizes());
    return source;
  }
};

// weights: [B, H, rows, blocks]
Sorted sorted_by(const Tensor& weights, const Blocks& blocks, int64_t size) {
  const int64_t examples = weights.size(0), heads = weights.size(1),
                rows = weights.size(2), count = weights.size(3);
  const auto mixed = [&](const Tensor& x) {  // [B, h, blocks, size*w], h divides H
    const int64_t own = x.size(1);
    return longspan::matmul(weights.to(x.scalar_type())
                                .reshape({examples, own, heads / own * rows, count}),
                            x)
        .view({examples, heads, rows * size, x.size(3) / size});
  };
  Sorted sorted{.k = mixed(blocks.k), .v = mixed(blocks.v)};
  if (!blocks.real.defined()) return sorted;
  const Tensor mass = mixed(blocks.real.to(weights.scalar_type()).unsqueeze(1));
  const Tensor all = longspan::sum_to(weights, {examples, heads, rows, 1});
  const Tensor share =  // of the weights that is on real tokens
      (mass.view({examples, heads, rows, size}) /
       spread(all.masked_fill(all == 0, 1), {examples, heads, rows, size}))
          .view(mass.sizes());
  const Tensor hidden = share <= kLeastShare;
  const auto of_real = [&](const Tensor& x) {
    const Tensor by = share.masked_fill(hidden, 1).to(x.scalar_type());
    return (x / spread(by, x.sizes())).masked_fill(hidden, 0);
  };
  return {.k = of_real(sorted.k),
          .v = of_real(sorted.v),
          .real = hidden.logical_not().squeeze(3)};
}

class Sinkhorn final : public Attention {
 public:
  Sinkhorn(const Settings& settings, const Sizes& sizes)
      : size_(settings.integer("block")),
        how_{.iterations = settings.integer("iterations"),
             .rows_last = settings.flag("final_row_norm")},
        temperature_(settings.number("temperature")),
        noise_(settings.flag("noise")),
        top_(settings.word("causal_sort") == "topk" ? settings.integer("top") : 0),
        cut_(settings.integer("cut")),
        sorted_only_(settings.flag("sorted_only")),
        mixture_(settings.flag("mixture")),
        scale_(1 / std::sqrt(static_cast<double>(sizes.head_width))) {
    require(temperature_ > 0, "temperature must be more than 0, got ", temperature_);
    if (settings.word("sort") == "attention") return;
    require(
        sizes.longest > 0, "sort = ", settings.word("sort"),
        " has a weight for every block, so the longest sequence must be given, got ",
        "longest = 0");
    network_ = register_parameter(
        "network",
        torch::empty({sizes.heads, 2 * sizes.head_width, blocks_in(sizes.longest)}));
    for (int64_t head = 0; head < sizes.heads; ++head)
      torch::nn::init::xavier_uniform_(network_[head]);
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const bool top = settings.word("causal_sort") == "topk";
    const int64_t size = settings.integer("block"), blocks = (tokens + size - 1) / size,
                  sorted = size * (top ? settings.integer("top") : 1);
    const int64_t of_head = sorted * (sizes.head_width + sizes.value_width + 1) +
                            sizes.head_width + 1 +
                            (top ? 0 : blocks * (settings.integer("iterations") + 1));
    return PatternAttention::numbers_kept(tokens, sizes) + sizes.heads * of_head;
  }

  Sight sight(int64_t tokens, bool causal) override {
    const Positions at(tokens);
    const Tensor of_query = torch::div(at.query, size_, "floor"),
                 of_key = torch::div(at.key, size_, "floor");
    const Tensor own = of_query == of_key;
    Tensor kind = torch::full({tokens, tokens}, static_cast<int64_t>(Sees::summarised),
                              torch::kByte);
    if (!sorted_only_ && (causal || cut_ == 0))
      kind.masked_fill_(own, static_cast<int64_t>(Sees::directly));
    if (causal) {
      const Tensor past = sorted_only_ ? of_key < of_query : at.key <= at.query;
      kind.masked_fill_(past.logical_not(), static_cast<int64_t>(Sees::nothing));
    }
    return {.pairs = kind.unsqueeze(0)};
  }

 private:
  using Noise = std::optional<Key>;

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    check(pass, q.size(2), k.size(2));
    // Drawn first, so that dropout changes no noise.
    const Noise noise = noise_of(pass);
    const Prepared prepared = prepare(q, k, v, pass);
    std::vector<Source> sources;
    if (k.size(2) == 0)
      sources = {prepared.source};
    else if (is_over_another(pass, q.size(2), k.size(2)))
      sources = {best_blocks(prepared, pass, noise)};
    else if (pass.mask.causal)
      sources = past_blocks(prepared, pass, noise);
    else
      sources = all_blocks(prepared, noise);
    Tensor out = block_attention(prepared.queries, sources, prepared.options).out;
    if (!mixture_) return out;
    Source every = prepared.source;
    every.layout = Layout(prepared.query_count(), prepared.key_count(), prepared.order);
    BlockAttention options = prepared.options;
    options.dropout.key = mix(options.dropout.key, 1);
    return out + block_attention(prepared.queries, {every}, options).out;
  }

  void check(const Pass& pass, int64_t queries, int64_t keys) const {
    require(!pass.mask.causal || cut_ == 0, "cut = ", cut_,
            " sorts the whole sequence and so has no causal form; give cut = 0");
    require(!pass.mask.causal || queries == keys,
            "the causal form sorts by all queries so far, got ", queries,
            " queries and ", keys, " keys; decode with pass.state instead");
    require(!network_.defined() || !is_over_another(pass, queries, keys),
            "over a context blocks are sorted by attention; give sort = attention");
  }

  static bool is_over_another(const Pass& pass, int64_t queries, int64_t keys) {
    return pass.crosses() || queries != keys;
  }

  Noise noise_of(Pass& pass) const {
    return noise_ && pass.training ? Noise(pass.draw.key()) : Noise();
  }

  int64_t blocks_in(int64_t tokens) const { return (tokens + size_ - 1) / size_; }

  // The first `count` blocks, the last perhaps shorter.
  std::vector<Span> block_spans(int64_t count, int64_t tokens) const {
    return equal_spans(std::min(count * size_, tokens), size_, size_);
  }

  // Tokens first .. first + count - 1 cut where blocks begin, counted from `first`.
  std::vector<Span> pieces_of(int64_t first, int64_t count) const {
    std::vector<Span> pieces;
    for (int64_t from = 0; from < count;) {
      const int64_t next = ((first + from) / size_ + 1) * size_ - first;
      pieces.push_back({from, std::min(next, count)});
      from = next;
    }
    return pieces;
  }

  // Standard Gumbel numbers [B, H, rows, blocks], each by its example, head, place and
  // block alone.
  static Tensor gumbel(Key key, const Tensor& like, int64_t first_row) {
    constexpr int64_t kWords = 4;  // of one counter
    const int64_t examples = like.size(0), heads = like.size(1), rows = like.size(2),
                  blocks = like.size(3);
    const auto whole = like.options().dtype(torch::kLong).requires_grad(false);
    const Tensor words =
        philox_words(
            key, torch::arange(examples * heads, whole).view({examples, heads, 1, 1}),
            torch::arange(first_row, first_row + rows, whole).view({-1, 1}),
            torch::arange((blocks + kWords - 1) / kWords, whole),
            torch::zeros({1}, whole))
            .flatten(3)
            .slice(3, 0, blocks);
    const Tensor uniform = (words.to(torch::kDouble) + 0.5) * 0x1p-32;
    return (-(-uniform.log()).log()).to(like.scalar_type());
  }

  Tensor tempered(const Tensor& logits, const Noise& noise, int64_t first_row) const {
    return (noise ? logits + gumbel(*noise, logits, first_row) : logits) / temperature_;
  }

  // q: [B, H, rows, d], what stands for a place; k: [B, Hk, blocks, d], for a block;
  // of_rows [B, Hk, rows, d], keys that stand for a place, only for the network.
  // Returns [B, H, rows, blocks].
  Tensor logits_of(const Tensor& q, const Tensor& k, const Tensor& of_rows) const {
    const int64_t examples = q.size(0), heads = q.size(1), rows = q.size(2),
                  width = q.size(3), key_heads = k.size(1), group = heads / key_heads,
                  blocks = k.size(2);
    if (!network_.defined())
      return longspan::matmul(
                 (q * scale_).reshape({examples, key_heads, group * rows, width}),
                 k.transpose(2, 3))
          .view({examples, heads, rows, blocks});
    require(blocks <= network_.size(2), "the sorting network knows ", network_.size(2),
            " blocks of ", size_, " tokens, got ", blocks,
            "; make it for the longest sequence");
    const Tensor keys =
        spread(of_rows.unsqueeze(2), {examples, key_heads, group, rows, width})
            .reshape({examples, heads, rows, width});
    return longspan::matmul(torch::cat({q, keys}, 3), at_least_float(network_))
        .relu()
        .slice(3, 0, blocks);
  }

  // Columns from the largest logit to the least; of equal ones the first comes first.
  static Tensor in_order(const Tensor& logits) {
    return std::get<1>(logits.detach().sort(/*stable=*/true, 3, /*descending=*/true));
  }

  // The best block of every row, the best of the others, and so on: row r * top + i of
  // the weights [B, H, rows*top, blocks] has one, what a softmax over those that are
  // left gives the i-th.
  static Tensor top_weights(Tensor logits, int64_t top, Pass& pass) {
    const int64_t blocks = logits.size(3);
    const Tensor known = pass.choices ? pass.choices->get("blocks") : Tensor();
    const Tensor best =  // [B, H, rows, top|blocks]
        known.defined() ? known : in_order(logits).slice(3, 0, top);
    if (pass.choices) pass.choices->set("blocks", best);
    const Tensor number = torch::arange(blocks, best.options());
    std::vector<Tensor> weights;
    for (int64_t i = 0; i < top; ++i) {
      if (i >= best.size(3)) {
        weights.push_back(torch::zeros_like(logits));
        continue;
      }
      const Tensor chosen = number == best.slice(3, i, i + 1);
      weights.push_back(row_weights(logits).masked_fill(chosen.logical_not(), 0));
      logits = logits.masked_fill(chosen, kNothing);
    }
    return torch::stack(weights, 3).flatten(2, 3);
  }

  // [B, M] bool, or undefined: all.
  static Tensor real_keys(const Prepared& prepared) {
    const Tensor& to = prepared.source.to;
    return to.defined() ? to.squeeze(1) > 0 : to;
  }

  Source best_blocks(const Prepared& prepared, Pass& pass, const Noise& noise) const {
    const auto& [queries, keys, options, global, order] = prepared;
    const int64_t tokens = keys.k.size(2), count = blocks_in(tokens);
    const Tensor real = real_keys(prepared);
    const Tensor real_queries =
        pass.mask.tokens.defined() ? pass.mask.tokens.to(queries.q.device()) : Tensor();
    const Blocks blocks(keys, real, count, size_);
    Tensor logits =
        tempered(logits_of(means_in({{0, queries.q.size(2)}}, queries.q, real_queries),
                           means_in(block_spans(count, tokens), keys.k, real), {}),
                 noise, 0);
    if (blocks.real.defined()) logits = where_real(logits, blocks.any(), 3);
    const int64_t cut = std::min(cut_ > 0 ? cut_ : kCutOfContext, count);
    return sorted_by(top_weights(logits, cut, pass), blocks, size_).source();
  }

  std::vector<Source> all_blocks(const Prepared& prepared, const Noise& noise) const {
    const auto& [queries, keys, options, global, order] = prepared;
    const int64_t tokens = keys.k.size(2), count = blocks_in(tokens);
    const Tensor real = real_keys(prepared);
    const Blocks blocks(keys, real, count, size_);
    const std::vector<Span> spans = block_spans(count, tokens);
    const Tensor means = means_in(spans, keys.k, real);
    Tensor logits =
        tempered(logits_of(means_in(spans, queries.q, real), means, means), noise, 0);
    if (real.defined())
      logits = where_real(where_real(logits, blocks.any(), 2), blocks.any(), 3);
    const Tensor weights = balanced(logits, how_);
    if (cut_ > 0)
      return {sorted_by(first_places(weights, real.defined() ? blocks.any() : Tensor()),
                        blocks, size_)
                  .source()};
    Source sorted = sorted_by(weights, blocks, size_).source();
    sorted.layout = Layout(tokens, count * size_, block_of_keys(size_));
    if (sorted_only_) return {sorted};
    Source own = keys;
    own.layout = Layout(tokens, tokens, block_of_keys(size_));
    return {own, sorted};
  }

  // The rows of the first `cut` places; a block that is not `real` [B, blocks] is none.
  Tensor first_places(const Tensor& weights, const Tensor& real) const {
    const int64_t cut = std::min(cut_, weights.size(2));
    if (!real.defined()) return weights.slice(2, 0, cut);
    const Tensor first =
        std::get<1>(real.logical_not().to(torch::kInt).sort(/*stable=*/true, 1, false));
    return weights.gather(2, first.slice(1, 0, cut).unsqueeze(1).unsqueeze(3).expand(
                                 {-1, weights.size(1), -1, weights.size(3)}));
  }

  std::vector<Source> past_blocks(const Prepared& prepared, Pass& pass,
                                  const Noise& noise) const {
    const auto& [queries, keys, options, global, order] = prepared;
    const int64_t first = queries.first, end_token = first + queries.q.size(2);
    // Blocks: that of the first query, those that begin here.
    const int64_t open = first / size_, begin = blocks_in(first),
                  end = blocks_in(end_token);
    Record* const kept = pass.state ? &pass.state->part("sort") : nullptr;
    Tensor real = real_keys(prepared);
    if (kept && !real.defined())
      real = torch::ones({queries.q.size(0), keys.k.size(2)},
                         queries.q.options().dtype(torch::kBool));
    const Tensor before = means_before(queries.q, first, real, kept);
    Sorted sorted;
    if (begin < end) {
      const Blocks blocks(keys, real, end - 1, size_);
      sorted = sorted_by(
          past_weights(before, prepared, blocks, real, begin, end, pass, noise), blocks,
          size_);
    }
    if (kept) sorted = kept_and(sorted, open < begin, *kept);

    const int64_t size = size_, rows = std::max<int64_t>(top_, 1);
    Source others = sorted.source();
    others.layout =
        Layout(queries.q.size(2), (end - open) * rows * size,
               [=](int64_t query, std::vector<Span>& seen) {
                 const int64_t block = (first + query) / size,
                               from = (block - open) * rows * size;
                 seen.push_back({from, from + std::min(rows, block) * size});
               });
    if (sorted_only_) return {others};
    const int64_t start = open * size;
    Source own{.k = keys.k.slice(2, start), .v = keys.v.slice(2, start)};
    if (keys.to.defined()) own.to = keys.to.slice(2, start);
    own.layout =
        Layout(queries.q.size(2), end_token - start,
               [=](int64_t query, std::vector<Span>& seen) {
                 const int64_t token = first + query;
                 seen.push_back({token / size * size - start, token + 1 - start});
               });
    return {own, others};
  }

  // The mean of the real queries before each block that begins among those of q,
  // [B, H, rows, d].
  Tensor means_before(const Tensor& q, int64_t first, const Tensor& real,
                      Record* kept) const {
    const Tensor real_queries = real.defined() ? real.slice(1, first) : real;
    const std::vector<Span> pieces = pieces_of(first, q.size(2));
    const Tensor means = means_in(pieces, q, real_queries);
    const Tensor past = kept ? kept->get("queries") : Tensor();
    const Tensor totals =
        totals_before(means, counts_in(pieces, real_queries, means.options()), past);
    const int64_t last = static_cast<int64_t>(pieces.size());
    if (kept) kept->set("queries", totals.slice(2, last));
    return means_of(totals.slice(2, first % size_ == 0 ? 0 : 1, last));
  }

  // Of places begin .. end - 1, over blocks 0 .. end - 2; q [B, H, end - begin, d].
  Tensor past_weights(const Tensor& q, const Prepared& prepared, const Blocks& blocks,
                      const Tensor& real, int64_t begin, int64_t end, Pass& pass,
                      const Noise& noise) const {
    const Tensor& keys = prepared.source.k;
    const std::vector<Span> spans = block_spans(end - 1, keys.size(2));
    const Tensor means = means_in(spans, keys, real);
    Tensor of_rows;
    if (network_.defined())
      of_rows =
          means_of(totals_before(means, counts_in(spans, real, means.options()), {})
                       .slice(2, begin));
    Tensor logits = tempered(logits_of(q, means, of_rows), noise, begin);
    const auto whole = logits.options().dtype(torch::kLong).requires_grad(false);
    const Tensor future =
        torch::arange(end - 1, whole) >= torch::arange(begin, end, whole).unsqueeze(1);
    logits = logits.masked_fill(future, kNothing);
    const Tensor any = blocks.real.defined() ? blocks.any() : Tensor();
    if (any.defined()) logits = where_real(logits, any, 3);
    if (top_ > 0) return top_weights(logits, top_, pass);
    if (pass.state) return next_rows(logits, any, pass.state->part("sort"));
    // Whether the last block is a row matters to none after it.
    if (any.defined())
      logits = where_real(logits, torch::constant_pad_nd(any, {0, 1}, true), 2);
    return balanced_onward(logits, {}, how_).weights;
  }

  // The same while decoding: whether a block is a row of the columns' sums is known
  // when it is complete, so its row waits until the next one.
  Tensor next_rows(const Tensor& logits, const Tensor& any, Record& kept) const {
    const int64_t rows = logits.size(2), blocks = logits.size(3);
    const Tensor waiting = kept.get("row"), columns = kept.get("columns");
    const auto widened = [&](const Tensor& x) {
      return torch::constant_pad_nd(x, {0, blocks - x.size(3)}, kNothing);
    };
    const Tensor last = logits.slice(2, rows - 1);
    Tensor done = logits.slice(2, 0, rows - 1);
    if (waiting.defined()) done = torch::cat({widened(waiting), done}, 2);
    const int64_t first = blocks - done.size(2);
    const BalancedRows past =
        balanced_onward(where_real(done, any.slice(1, first), 2),
                        columns.defined() ? widened(columns) : columns, how_);
    kept.set("row", last.clone());
    kept.set("columns", past.columns);
    return torch::cat({past.weights.slice(2, waiting.defined() ? 1 : 0),
                       balanced_onward(last, past.columns, how_).weights},
                      2);
  }

  // The sorted block of the open place, if there is one, and `more`; of both the last
  // place is kept.
  Sorted kept_and(const Sorted& more, bool with_kept, Record& kept) const {
    const int64_t size = std::max<int64_t>(top_, 1) * size_;
    const auto all = [&](const char* name, const Tensor& now) {
      const Tensor past = with_kept ? kept.get(name) : Tensor();
      const Tensor both = !past.defined()  ? now
                          : !now.defined() ? past
                                           : torch::cat({past, now}, 2);
      const int64_t more_places = both.size(2) - size;
      kept.set(name, more_places > 0 ? both.slice(2, more_places).clone() : both);
      return both;
    };
    return {
        .k = all("k", more.k), .v = all("v", more.v), .real = all("real", more.real)};
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t examples = q.size(0), heads = q.size(1), queries = q.size(2),
                  keys = k.size(2), count = blocks_in(keys);
    check(pass, queries, keys);
    const Noise noise = noise_of(pass);
    if (keys == 0)
      return masked_attention(q, k, v, allowed_pairs(pass, queries, 0, q.device()),
                              pass);
    const bool causal = pass.mask.causal,
               crosses = is_over_another(pass, queries, keys);
    const int64_t group = heads / k.size(1);
    const Tensor every_k = k.repeat_interleave(group, 1),
                 every_v = v.repeat_interleave(group, 1);
    const auto tokens_or_all = [&](const Tensor& tokens, int64_t n) {
      return tokens.defined()
                 ? tokens.to(q.device())
                 : torch::ones({examples, n}, q.options().dtype(torch::kBool));
    };
    const Tensor real = tokens_or_all(pass.keys(queries, keys).tokens, keys);
    const auto index = [&](int64_t n) {
      return torch::arange(n, q.options().dtype(torch::kLong).requires_grad(false));
    };
    const Tensor block = torch::div(index(keys), size_, "floor"),
                 place = index(count).unsqueeze(1);
    // Means of x where `of` [rows, n] of the tokens that are real.
    const auto means = [&](const Tensor& of, const Tensor& tokens, const Tensor& x) {
      const Tensor members =
          of.logical_and(tokens.unsqueeze(1)).to(x.scalar_type()).unsqueeze(1);
      return members.matmul(x) / members.sum(3, /*keepdim=*/true).clamp_min(1);
    };
    const Tensor in_block = block == place, before = block < place;
    const Tensor k_means = means(in_block, real, every_k);
    const Tensor some = in_block.logical_and(real.unsqueeze(1)).any(2);  // [B, blocks]

    const Tensor& of_place = causal ? before : in_block;
    const Tensor q_means = crosses ? means(torch::ones({1, queries}, real.options()),
                                           tokens_or_all(pass.mask.tokens, queries), q)
                                   : means(of_place, real, q);
    Tensor logits;
    if (network_.defined())
      logits = torch::cat({q_means, means(of_place, real, every_k)}, 3)
                   .matmul(network_)
                   .relu()
                   .slice(3, 0, count);
    else
      logits = scale_ * q_means.matmul(k_means.transpose(2, 3));
    logits = tempered(logits, noise, 0);

    const Tensor hidden_pairs =
        causal ? (index(count) >= place).logical_or(some.logical_not().unsqueeze(1))
               : some.logical_not().unsqueeze(1);  // [B, rows|1, blocks]
    const Tensor seen_logits = logits.masked_fill(hidden_pairs.unsqueeze(1), kNothing);
    Tensor weights;
    int64_t rows = 1;  // of a place
    if (crosses || (causal && top_ > 0)) {
      rows = !crosses ? top_ : std::min(cut_ > 0 ? cut_ : kCutOfContext, count);
      weights = defined_top(seen_logits, rows);
    } else {
      std::vector<Tensor> each;
      for (int64_t b = 0; b < examples; ++b)
        each.push_back(causal ? balanced_rows(logits[b], some[b])
                              : balanced_part(logits[b], some[b]));
      weights = each.empty() ? logits : torch::stack(each);
    }

    const auto in_blocks = [&](const Tensor& x) {  // [B, h, blocks, size, w]
      const Tensor clean = x * real.unsqueeze(1).unsqueeze(3).to(x.scalar_type());
      return torch::constant_pad_nd(clean, {0, 0, 0, count * size_ - keys})
          .view({examples, x.size(1), count, size_, x.size(3)});
    };
    const auto sorted = [&](const Tensor& x) {
      const Tensor y = in_blocks(x).expand({-1, heads, -1, -1, -1});
      return torch::einsum("bhuv,bhvpw->bhupw", {weights, y}).flatten(2, 3);
    };
    const Tensor whole = weights.sum(3).repeat_interleave(size_, 2).unsqueeze(3);
    const Tensor share = sorted(torch::ones({examples, 1, keys, 1}, q.options())) /
                         whole.masked_fill(whole == 0, 1);
    const Tensor hidden = share <= kLeastShare;
    const auto of_real = [&](const Tensor& x) {
      return (sorted(x) / share.masked_fill(hidden, 1)).masked_fill(hidden, 0);
    };

    Tensor seen = hidden.logical_not().transpose(2, 3);  // [B, H, 1, rows*size]
    Tensor own = real.unsqueeze(1).unsqueeze(1);         // [B, 1, 1, M]
    if (!crosses && cut_ == 0) {
      const Tensor of_query = block.unsqueeze(1);
      seen = seen.logical_and(torch::div(index(seen.size(3)), rows * size_, "floor") ==
                              of_query);
      own = own.logical_and(block == of_query);
      if (causal) own = own.logical_and(index(keys) <= index(keys).unsqueeze(1));
    }
    if (crosses || cut_ > 0 || sorted_only_) own = torch::zeros_like(own);
    const Tensor visible =
        torch::cat({own.expand({examples, heads, queries, keys}),
                    seen.expand({examples, heads, queries, seen.size(3)})},
                   3);
    const Tensor out =
        masked_attention(q, torch::cat({every_k, of_real(every_k)}, 2),
                         torch::cat({every_v, of_real(every_v)}, 2), visible, Pass());
    if (!mixture_) return out;
    return out + masked_attention(q, k, v,
                                  allowed_pairs(pass, queries, keys, q.device()), pass);
  }

  // Rows `at` [n] of the identity of as many columns as `like` [.., m] has: [n, m].
  static Tensor of_identity(const Tensor& at, const Tensor& like) {
    return (torch::arange(like.size(-1), at.options()) == at.unsqueeze(1))
        .to(like.scalar_type());
  }

  // Of one example, [H, blocks, blocks], between the blocks that are `real` [blocks];
  // with `cut`, its rows are those of the first of them.
  Tensor balanced_part(const Tensor& logits, const Tensor& real) const {
    const Tensor at = real.nonzero().view(-1);
    const Tensor pick = of_identity(at, logits);
    Tensor part = logits.index_select(1, at).index_select(2, at);
    if (at.size(0) > 0)
      for (int64_t i = 0; i < 2 * how_.iterations + how_.rows_last; ++i)
        part = part - part.logsumexp(i % 2 == 0 ? 2 : 1, /*keepdim=*/true);
    const Tensor weights = part.exp().matmul(pick);
    if (cut_ == 0) return pick.t().matmul(weights);
    const int64_t cut = std::min(cut_, logits.size(2));
    const int64_t missing = std::max<int64_t>(cut - at.size(0), 0);
    return torch::constant_pad_nd(weights.slice(1, 0, cut), {0, 0, 0, missing});
  }

  // The same for causal passes, one row after the other.
  Tensor balanced_rows(const Tensor& logits, const Tensor& real) const {
    std::vector<Tensor> sums(static_cast<size_t>(how_.iterations),
                             torch::full_like(logits.select(1, 0), kNothing)),
        rows;
    for (int64_t row = 0; row < logits.size(1); ++row) {
      const Tensor at = real.slice(0, 0, row).nonzero().view(-1);
      const Tensor pick = of_identity(at, logits);
      Tensor part = logits.select(1, row).index_select(1, at);
      const auto normalise = [&] {
        if (at.size(0) > 0) part = part - part.logsumexp(1, /*keepdim=*/true);
      };
      for (Tensor& sum : sums) {
        normalise();
        const Tensor so_far =
            torch::stack({sum.index_select(1, at), part}).logsumexp(0);
        if (real[row].item<bool>()) sum = sum.index_copy(1, at, so_far);
        part = part - so_far;
      }
      if (how_.rows_last) normalise();
      rows.push_back(part.exp().matmul(pick));
    }
    return torch::stack(rows, 1);
  }

  // Row r*top + i: the i-th best block of row r and its softmax weight among the rest.
  static Tensor defined_top(Tensor logits, int64_t top) {
    std::vector<Tensor> weights;
    for (int64_t i = 0; i < top; ++i) {
      const Tensor gone = logits.isneginf();
      const Tensor left = logits.masked_fill(gone, hidden_score(logits.scalar_type()))
                              .softmax(3)
                              .masked_fill(gone, 0);
      const Tensor best =
          torch::zeros_like(gone).scatter(3, in_order(logits).slice(3, 0, 1), true);
      weights.push_back(left * best.to(left.scalar_type()));
      logits = logits.masked_fill(best, kNothing);
    }
    return torch::stack(weights, 3).flatten(2, 3);
  }

  int64_t size_;  // tokens of a block
  Balancing how_;
  double temperature_;
  bool noise_;
  int64_t top_;  // 0: causal rows are balanced
  int64_t cut_;
  bool sorted_only_, mixture_;
  double scale_;
  Tensor network_;  // [H, 2*d, blocks], or undefined: sorted by attention
};

constexpr Setting kSettings[] = {
    {.name = "block", .standard = "64", .help = "tokens of a block", .least = 1},
    {.name = "iterations",
     .standard = "5",
     .help = "how often rows and columns of the sort matrix are normalised",
     .least = 1},
    {.name = "temperature",
     .kind = Kind::number,
     .standard = "0.75",
     .help = "what logits are divided by; the lower, the harder blocks are sorted"},
    {.name = "noise",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "Gumbel noise on the logits, in training only"},
    {.name = "sort",
     .kind = Kind::word,
     .standard = "attention",
     .help = "logits from the mean query of a place and the mean key of a block; or a "
             "network of every head over both means of the place, with a weight for "
             "every block of the longest sequence",
     .choices = "attention|network"},
    {.name = "causal_sort",
     .kind = Kind::word,
     .standard = "sinkhorn",
     .help = "in causal passes: columns normalised over the rows so far, which many "
             "iterations turn into the block before; or the best past blocks, each "
             "times its softmax weight among those that are left",
     .choices = "sinkhorn|topk"},
    {.name = "top",
     .standard = "2",
     .help = "with causal_sort = topk, how many blocks are sorted to a place",
     .least = 1},
    {.name = "cut",
     .standard = "0",
     .help = "all queries see only the blocks sorted to so many first places "
             "(SortCut), not in causal passes; 0: none, over a context the 2 best",
     .least = 0},
    {.name = "sorted_only",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "a block does not see itself"},
    {.name = "final_row_norm",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "rows are normalised once more at the end, so that a sorted block is a "
             "mean of blocks however few the iterations are"},
    {.name = "mixture",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "dense attention is added"},
};

constexpr Preset kPresets[] = {{"lra", "{block: 50}"}};

}  // namespace

constinit const Mechanism catalogue::sinkhorn{
    .name = "sinkhorn",
    .summary = "blocks that see themselves and the block that is softly sorted to them",
    .paper = "Tay et al. 2020, arXiv:2002.11296",
    .classes = "learnable patterns",
    .time = {"N*(block + N/block)*d + iterations*(N/block)^2", 2},
    .memory = {"N*d + (N/block)^2", 2},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .decoding = true,
            .dropout = true,
            .grouped = true},
    .state =
        "keys and values of all tokens and of the sorted block, the sum of all "
        "queries, and the sums of the sort matrix's columns, one an iteration",
    .state_size = Sinkhorn::state_size,
    .full = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{block: 16, iterations: 3}",
    .make = made_as<Attention, Sinkhorn>(),
};

}  // namespace longspan
