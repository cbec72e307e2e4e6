// Softmax attention in a window around every token, and by random features over all
// keys beyond it, in one normaliser. Chen et al. 2021, arXiv:2110.15343.
//
// The paper subtracts the features' share of the window from their sums over all keys.
// Here those sums never hold it: keys enter them when they leave the window, once from
// the start and, unless causal, once from the end; the parts are merged.

#include <algorithm>
#include <cmath>
#include <limits>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/feature_attention.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/attention/random_features.h"

namespace longspan {
namespace {

using torch::Tensor;

// With so many queries more in front, which see nothing.
Attended with_blind(const Attended& part, int64_t blind) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  return {.out = torch::constant_pad_nd(part.out, {0, 0, blind, 0}),
          .lse = torch::constant_pad_nd(part.lse, {blind, 0}, kNothing)};
}

class Scatterbrain final : public Attention {
 public:
  Scatterbrain(const Settings& settings, const Sizes& sizes)
      : window_(settings.integer("window")), random_(*this, settings, sizes) {}

  Sight sight(int64_t tokens, bool causal) override {
    Sight sight = sight_of_sums(tokens, causal);
    const Positions at(tokens);
    const Tensor near = (at.query - at.key).abs().le(window_).unsqueeze(0);
    sight.pairs.masked_fill_(near & sight.pairs.ne(0),
                             static_cast<int64_t>(Sees::directly));
    return sight;
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    random_.begin(pass);
    // In decoding the keys that a next token has in its window, the one before them,
    // and the new ones.
    Prepared prepared = prepare(q, k, v, pass);
    Source& source = prepared.source;
    const int64_t queries = q.size(2), keys = source.k.size(2), held = keys - queries;
    const bool causal = pass.mask.causal;
    source.layout = Layout(
        queries, keys,
        [=, reach = std::min(window_, keys)](int64_t query, std::vector<Span>& seen) {
          const int64_t at = held + query;
          seen.push_back({at - reach, at + (causal ? 1 : reach + 1)});
        });
    std::vector<Attended> parts = {
        block_attention(prepared.queries, {source}, prepared.options)};

    // So many queries have no key before their windows. Those after them have each one
    // more than the one before, the first of them the first key.
    const int64_t seen = pass.state ? pass.state->tokens - queries : 0;
    const int64_t blind = std::clamp<int64_t>(window_ - seen, -1, queries - 1) + 1;
    if (blind < queries) {
      const Tensor weights =
          source.to.defined() ? (source.to > 0).to(torch::kFloat) : Tensor();
      parts.push_back(
          before_windows(q, source.k, source.v, weights, blind, pass.state));
      if (!causal) {
        const auto turned = [](const Tensor& x) { return x.defined() ? x.flip(2) : x; };
        const auto [out, lse] = before_windows(turned(q), turned(k), turned(v),
                                               turned(weights), blind, nullptr);
        parts.push_back({turned(out), turned(lse)});
      }
    }
    if (pass.state)
      keep_keys(*pass.state, torch::arange(queries - blind, keys, torch::kLong));
    return parts.size() == 1 ? parts[0].out : merge(parts).out;
  }

  // By features, the queries after the first `blind` over the keys of `state`, and each
  // over one more of the first of k, with weights [B, 1, M] or undefined.
  Attended before_windows(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& weights, int64_t blind, Record* state) const {
    const auto first = [count = q.size(2) - blind](const Tensor& x) {
      return x.defined() ? x.slice(2, 0, count) : x;
    };
    const LinearAttended attended =
        continued_attention({.q = random_.logs(q.slice(2, blind)),
                             .k = random_.logs(first(k)),
                             .v = first(v),
                             .weights = first(weights)},
                            {.causal = true, .log_features = true}, state);
    return with_blind({.out = attended.out, .lse = attended.lse}, blind);
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    random_.begin(pass);
    const int64_t group = q.size(1) / k.size(1), tokens = q.size(2);
    const auto of_every_head = [&](const Tensor& x) {
      return x.repeat_interleave(group, 1).transpose(2, 3);
    };
    const Tensor exact =
        (q.matmul(of_every_head(k)) / std::sqrt(static_cast<double>(q.size(3)))).exp();
    const Tensor in_the_mean =
        random_.defined(q).matmul(of_every_head(random_.defined(k)));
    const Positions at(tokens);
    const Tensor near = (at.query - at.key).abs().le(window_).to(q.device());
    const Tensor weights =
        torch::where(near, exact, in_the_mean)
            .masked_fill(allowed_pairs(pass, tokens, tokens, q.device()).logical_not(),
                         0);
    const Tensor sum = weights.sum(3, /*keepdim=*/true);
    return (weights / sum.masked_fill(sum == 0, 1))
        .matmul(v.repeat_interleave(group, 1));
  }

  int64_t window_;
  RandomFeatures random_;
};

constexpr Setting kSettings[] = {
    {.name = "window",
     .standard = "128",
     .help = "tokens on each side that are seen by softmax, and the token itself",
     .least = 0},
    kRandomFeatureSettings[0],
    kRandomFeatureSettings[1],
    kRandomFeatureSettings[2],
};

}  // namespace

constinit const Mechanism catalogue::scatterbrain{
    .name = "scatterbrain",
    .summary = "softmax in a window, random features beyond it, one normaliser",
    .paper = "Chen et al. 2021, arXiv:2110.15343",
    .classes = "fixed patterns, kernels",
    .time = {"N*(window + features)*(d + dv)", 1},
    .memory = {"N*(features + d)", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .grouped = true},
    .state =
        "keys and values of the last window + 1 tokens, and sums over those before",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
          const int64_t window = settings.integer("window"),
                        sums = sums_kept(sizes, settings.integer("features"), true);
          return PatternAttention::numbers_kept(std::min(tokens - 1, window) + 1,
                                                sizes) +
                 (tokens > window + 1 ? sums : 0);
        },
    .full = true,
    .settings = kSettings,
    .test_settings = "{window: 5, features: 12, redraw: 2}",
    .make = made_as<Attention, Scatterbrain>(),
};

}  // namespace longspan
