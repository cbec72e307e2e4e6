// A window, and beside it the whole sequence in a few vectors that every head mixes
// anew for every input, in one softmax. Zhu et al. 2021, arXiv:2107.02192.
//
// The weights of the mixing are a softmax over the length of a linear map of the
// tokens. Blocks of `window` tokens see themselves and half a window on each side.
// Causally it is segments of tokens that are mixed, each by itself, and a query sees a
// segment from its last token on, and the last `window` tokens, itself among them: that
// is quadratic in N, for all segments before a query are seen; without causality it is
// linear. Queries of another sequence see its mixed vectors only.
//
// What is in the window and what is mixed is normalised over all heads, by norms of
// their own; keys and values have one each, for they may differ in width. Positions are
// the model's: there are no relative ones in the scores. Values are not convolved.

#include <algorithm>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/head_projections.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/pool.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "window",
     .standard = "128",
     .help = "tokens of a block, which sees half as many more on each side; causal: "
             "the last tokens seen",
     .least = 1},
    {.name = "compressed",
     .standard = "32",
     .help = "vectors that the sequence becomes, r",
     .least = 0},
    {.name = "segment",
     .standard = "16",
     .help = "causal: tokens that are compressed together",
     .least = 1},
    {.name = "per_segment",
     .standard = "1",
     .help = "causal: vectors that a segment becomes",
     .least = 0},
    {.name = "dual_norm",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "normalise the keys and values of the window and the compressed ones"},
};

constexpr Preset kPresets[] = {{"lra", "{window: 8}"}};

// A norm over all heads of tokens; none without a weight.
struct HeadsNorm {
  Tensor weight = {}, bias = {};  // [Hk*w]

  Tensor operator()(const Tensor& heads) const {
    if (!weight.defined()) return heads;
    return in_heads(longspan::layer_norm(joined_heads(heads), weight, bias),
                    heads.size(1));
  }

  Tensor reference(const Tensor& heads) const {
    if (!weight.defined()) return heads;
    return in_heads(layer_norm_reference(joined_heads(heads), weight, bias),
                    heads.size(1));
  }
};

struct KeysAndValues {
  Tensor k, v;  // [B, Hk, n, w]
};

class LongShort final : public Mixer {
 public:
  LongShort(const Settings& settings, const Sizes& sizes)
      : key_heads_(sizes.key_heads),
        window_(settings.integer("window")),
        segment_(settings.integer("segment")),
        rank_(settings.integer("compressed")),
        segment_rank_(settings.integer("per_segment")),
        projections_(*this, "", sizes, /*has_bias=*/true) {
    // A softmax over tokens is the same whatever is added to all of them.
    const auto weighing = [&](const char* name, int64_t rank) {
      return rank == 0 ? Linear{}
                       : make_linear(*this, name, key_heads_ * rank, sizes.embedding,
                                     /*has_bias=*/false);
    };
    weigh_ = weighing("compress", rank_);
    weigh_segment_ = weighing("causal_compress", segment_rank_);
    if (!settings.flag("dual_norm")) return;
    const auto norm = [&](const std::string& name, int64_t width) -> HeadsNorm {
      return {register_parameter(name + "_weight", torch::ones(key_heads_ * width)),
              register_parameter(name + "_bias", torch::zeros(key_heads_ * width))};
    };
    k_norm_ = norm("k_norm", sizes.head_width);
    v_norm_ = norm("v_norm", sizes.value_width);
    compressed_k_norm_ = norm("compressed_k_norm", sizes.head_width);
    compressed_v_norm_ = norm("compressed_v_norm", sizes.value_width);
  }

  Sight sight(int64_t tokens, bool causal) override {
    const Positions at(tokens);
    const Tensor end = (torch::div(at.key, segment_, "floor") + 1) * segment_;
    const int64_t rank = causal ? segment_rank_ : rank_;
    Tensor mixed = causal ? end <= at.query + 1 : (at.query + at.key) >= 0;
    if (rank == 0) mixed = torch::zeros_like(mixed);
    const Tensor pairs =
        mixed.to(torch::kByte) * static_cast<int64_t>(Sees::summarised);
    return {.pairs = pairs
                         .masked_fill(in_window(at, causal),
                                      static_cast<int64_t>(Sees::directly))
                         .unsqueeze(0)};
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t rank = settings.integer("per_segment"),
                  segment = settings.integer("segment"),
                  underway = rank == 0 ? 0 : tokens % segment,
                  near = std::max(settings.integer("window") - 1, underway),
                  kept = std::min(tokens, near) + tokens / segment * rank;
    return PatternAttention::numbers_kept(kept, sizes) +
           underway * rank * sizes.key_heads;
  }

 private:
  // [N, N], by arithmetic.
  Tensor in_window(const Positions& at, bool causal) const {
    const Tensor back = at.query - at.key;
    if (causal) return back.ge(0).logical_and(back < window_);
    const Tensor first = torch::div(at.query, window_, "floor") * window_;
    const int64_t half = window_ / 2;
    return at.key.ge(first - half).logical_and(at.key < first + window_ + half);
  }

  KeysAndValues keys_and_values(const Tensor& x) const {
    return {k_norm_(projections_.k(x)), v_norm_(projections_.v(x))};
  }

  // The sequence x, of the tokens `real` [B, n] or of all, in `rank_` vectors. Weights
  // by token are keys to queries that each pick one.
  Source whole(const Tensor& x, const KeysAndValues& keys, const Tensor& real) const {
    const Tensor weights = in_heads(weigh_(x), key_heads_);  // [B, Hk, n, r]
    const Tensor pick = torch::eye(rank_, x.options().dtype(torch::kFloat))
                            .to(x.scalar_type())
                            .expand({x.size(0), key_heads_, rank_, rank_});
    const auto mixed = [&](const Tensor& y) {
      Source tokens{.k = weights, .v = y};
      if (real.defined()) tokens.to = open_where(real);
      return block_attention({.q = pick}, {tokens}, {.scale = 1}).out;
    };
    Source made{.k = compressed_k_norm_(mixed(keys.k)),
                .v = compressed_v_norm_(mixed(keys.v))};
    if (real.defined())
      made.to = open_where(real.any(1, /*keepdim=*/true).expand({-1, rank_}));
    return made;
  }

  // The same of whole segments, each in `segment_rank_` vectors; `weights`
  // [B, Hk, n, r].
  KeysAndValues in_segments(const KeysAndValues& keys, const Tensor& weights,
                            const Tensor& real) const {
    const auto spans = equal_spans(weights.size(2), segment_, segment_);
    const auto mixed = [&](const Tensor& y) {
      PoolInputs inputs{.x = y};
      if (real.defined()) inputs.keep = real.unsqueeze(1);
      std::vector<Tensor> rows;
      for (int64_t row = 0; row < segment_rank_; ++row) {
        inputs.scores = weights.select(3, row);
        rows.push_back(pool_spans(inputs, spans, Pooling::softmax).out);
      }
      return torch::stack(rows, 3).flatten(2, 3);
    };
    return {compressed_k_norm_(mixed(keys.k)), compressed_v_norm_(mixed(keys.v))};
  }

  // The segments that are complete by now; `tokens` has the keys of the last tokens
  // before the queries, those of the segment underway among them, and of the queries.
  Source past(const Tensor& x, const Prepared& prepared, Record* state) const {
    const auto& [queries, tokens, options, global, order] = prepared;
    const int64_t count = x.size(1), first = queries.first, underway = first % segment_,
                  begin = tokens.k.size(2) - count - underway,
                  done = (underway + count) / segment_ * segment_;  // tokens
    Tensor weights = in_heads(weigh_segment_(x), key_heads_);
    if (state && state->get("weights").defined())
      weights = torch::cat({state->get("weights"), weights}, 2);
    const auto finished = [&](const Tensor& y) {
      return y.slice(-2, begin, begin + done);
    };
    Tensor real;
    if (tokens.to.defined())
      real = finished(tokens.to.squeeze(1).unsqueeze(-1)).squeeze(-1) > 0;
    auto [k, v] = in_segments({finished(tokens.k), finished(tokens.v)},
                              weights.slice(2, 0, done), real);
    Tensor any = real.defined()
                     ? real.reshape({x.size(0), done / segment_, segment_}).any(2)
                     : torch::ones({x.size(0), done / segment_},
                                   x.options().dtype(torch::kBool));
    any = any.repeat_interleave(segment_rank_, 1);
    if (state) {
      state->set("weights", weights.slice(2, done).clone());
      Record& segments = state->part("segments");
      k = segments.grow("k", k, 2);
      v = segments.grow("v", v, 2);
      any = segments.grow("tokens", any, 1);
    }
    Source made{.k = k, .v = v};
    made.layout = Layout(count, k.size(2),
                         [first, segment = segment_, rank = segment_rank_](
                             int64_t query, std::vector<Span>& seen) {
                           seen.push_back({0, (first + query + 1) / segment * rank});
                         });
    if (real.defined() || state) made.to = open_where(any);
    return made;
  }

  // Those of the window, of as many keys as there are.
  Layout near(int64_t queries, int64_t keys, bool causal) const {
    const int64_t before = keys - queries, window = window_;
    if (causal)
      return Layout(queries, keys, [=](int64_t query, std::vector<Span>& seen) {
        const int64_t end = before + query + 1;
        seen.push_back({end - window, end});
      });
    return Layout(queries, keys, [=](int64_t query, std::vector<Span>& seen) {
      const int64_t first = query / window * window;
      seen.push_back({first - window / 2, first + window + window / 2});
    });
  }

  // The vectors of the context; decoding makes them once.
  Source context(const Tensor& queries, Pass& pass) const {
    require(rank_ > 0,
            "queries of another sequence see compressed keys only; set compressed to 1 "
            "or more, got 0");
    Record* const state = pass.state;
    if (state && state->get("context_k").defined())
      return {.k = state->get("context_k"),
              .v = state->get("context_v"),
              .to = state->get("context_to")};
    const auto [x, tokens, positions] = key_tokens(queries, pass);
    const Tensor real = tokens.defined() ? tokens.to(x.device())
                                         : torch::ones({x.size(0), x.size(1)},
                                                       x.options().dtype(torch::kBool));
    const Source made = whole(x, keys_and_values(x), real);
    if (state) {
      state->set("context_k", made.k);
      state->set("context_v", made.v);
      state->set("context_to", made.to);
    }
    return made;
  }

  Tensor across(const Tensor& x, Pass& pass) const {
    const BlockAttention options{.dropout = dropout_of(pass)};
    return projections_.out(
        block_attention({.q = projections_.q(x)}, {context(x, pass)}, options).out);
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    if (pass.crosses()) return across(x, pass);
    const bool causal = pass.mask.causal;
    const KeysAndValues keys = keys_and_values(x);
    Prepared prepared = prepare(projections_.q(x), keys.k, keys.v, pass);
    Source& window = prepared.source;
    window.layout = near(prepared.query_count(), prepared.key_count(), causal);
    std::vector<Source> sources = {window};
    if (causal && segment_rank_ > 0)
      sources.push_back(past(x, prepared, pass.state));
    else if (!causal && rank_ > 0)
      sources.push_back(whole(
          x, keys,
          pass.mask.tokens.defined() ? pass.mask.tokens.to(x.device()) : Tensor()));
    if (Record* const state = pass.state) {
      const int64_t count = prepared.key_count(),
                    underway = segment_rank_ == 0 ? 0 : state->tokens % segment_,
                    kept = std::min(count, std::max(window_ - 1, underway));
      keep_keys(*state, torch::arange(count - kept, count));
    }
    return projections_.out(
        block_attention(prepared.queries, sources, prepared.options).out);
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const bool crosses = pass.crosses(), causal = pass.mask.causal;
    const Tensor& from = crosses ? pass.context.x : x;
    const int64_t examples = x.size(0), queries = x.size(1), tokens = from.size(1),
                  rank = causal ? segment_rank_ : rank_,
                  length = causal ? segment_ : tokens,
                  segments = causal ? tokens / segment_ : 1;
    const auto whole_numbers = torch::TensorOptions(torch::kLong).device(x.device());
    const Tensor given = crosses ? pass.context.tokens : pass.mask.tokens;
    const Tensor real =
        given.defined() ? given.to(x.device())
                        : torch::ones({examples, tokens}, torch::kBool).to(x.device());
    const Tensor k = k_norm_.reference(projections_.k(from)),
                 v = v_norm_.reference(projections_.v(from));
    std::vector<Tensor> all_k, all_v, all_seen;
    if (!crosses) {
      all_k = {k};
      all_v = {v};
      all_seen = {in_window(Positions(tokens), causal)
                      .to(x.device())
                      .logical_and(real.unsqueeze(1).unsqueeze(1))};
    }
    if (rank > 0) {
      const Tensor segment = torch::arange(segments, whole_numbers).unsqueeze(1);
      const Tensor at = torch::arange(tokens, whole_numbers).unsqueeze(0);
      const Tensor members = at.ge(segment * length)
                                 .logical_and(at < (segment + 1) * length)
                                 .logical_and(real.unsqueeze(1));  // [B, G, M]
      const Tensor hidden = members.logical_not().unsqueeze(1).unsqueeze(3);
      const Tensor weights =
          in_heads((causal ? weigh_segment_ : weigh_)(from), key_heads_)
              .transpose(2, 3)
              .unsqueeze(2)  // [B, Hk, 1, r, M]
              .masked_fill(hidden, hidden_score(x.scalar_type()))
              .softmax(4)
              .masked_fill(hidden, 0)
              .flatten(2, 3);
      all_k.push_back(compressed_k_norm_.reference(weights.matmul(k)));
      all_v.push_back(compressed_v_norm_.reference(weights.matmul(v)));
      Tensor seen = members.any(2).unsqueeze(1).unsqueeze(1);  // [B, 1, 1, G]
      if (causal) {
        const Tensor query = torch::arange(queries, whole_numbers).unsqueeze(1);
        seen = seen.logical_and(query >= (segment.transpose(0, 1) + 1) * length - 1);
      }
      all_seen.push_back(seen.expand({-1, -1, queries, -1}).repeat_interleave(rank, 3));
    }
    return projections_.out(masked_attention(projections_.q(x), torch::cat(all_k, 2),
                                             torch::cat(all_v, 2),
                                             torch::cat(all_seen, 3), Pass()));
  }

  int64_t key_heads_, window_, segment_, rank_, segment_rank_;
  HeadProjections projections_;
  Linear weigh_, weigh_segment_;
  HeadsNorm k_norm_, v_norm_, compressed_k_norm_, compressed_v_norm_;
};

}  // namespace

constinit const Mechanism catalogue::long_short{
    .name = "long_short",
    .summary = "a window, and the whole sequence in a few vectors mixed by content",
    .paper = "Zhu et al. 2021, arXiv:2107.02192",
    .classes = "fixed patterns, low rank",
    .time = {"N*(2*window + compressed)*d, "
             "causal N*(window + N*per_segment/segment)*d",
             2},
    .memory = {"N*(d + compressed)", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .decoding = true,
            .dropout = true,
            .grouped = true},
    .state =
        "keys and values of the window, of the compressed segments, and of the "
        "segment underway with the weights of its tokens",
    .state_size = LongShort::state_size,
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{window: 6, compressed: 3, segment: 5, per_segment: 2}",
    .make = made_as<Mixer, LongShort>(),
};

}  // namespace longspan
