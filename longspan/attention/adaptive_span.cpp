// A window into the past whose length every head learns. Sukhbaatar et al. 2019,
// arXiv:1905.07799.
//
// A key at distance x has m(x) = clamp((ramp + z*longest - x) / ramp, 0, 1) times its
// weight, z in [0, 1] being the head's span; keys where m is 0 are not visited.

#include <algorithm>
#include <cmath>
#include <limits>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

class AdaptiveSpan final : public Attention {
 public:
  AdaptiveSpan(const Settings& settings, const Sizes& sizes)
      : longest_(settings.integer("longest")),
        ramp_(settings.integer("ramp")),
        loss_(settings.number("loss")) {
    const double initial = settings.number("initial");
    require(initial <= 1, "initial must be a part of longest, 0 to 1, got ", initial);
    span_ = register_parameter("span", torch::full({sizes.heads}, initial));
    if (settings.flag("positions"))
      key_positions_ = register_parameter(
          "key_positions", 0.02 * torch::randn({longest_, sizes.head_width}));
  }

  Sight sight(int64_t tokens, bool) override {
    const Positions at(tokens);
    const Tensor distance = at.query - at.key;
    std::vector<Tensor> heads;
    for (const int64_t reach : reaches(log_factors()))
      heads.push_back(distance.ge(0) & distance.lt(reach));
    return {.pairs = torch::stack(heads).to(torch::kByte)};
  }

 private:
  Tensor exact_span() const {
    const bool wide = span_.scalar_type() == torch::kDouble;
    return span_.to(wide ? torch::kDouble : torch::kFloat).clamp(0, 1);
  }

  // ln m at the distances 0 .. longest - 1, [H, longest].
  Tensor log_factors() const {
    const Tensor span = exact_span().unsqueeze(1);
    const Tensor distance = torch::arange(longest_, span.options());
    const Tensor factor =
        (spread(span, {span.size(0), longest_}) * longest_ + ramp_ - distance) / ramp_;
    const Tensor fades = factor.gt(0) & factor.lt(1);
    return torch::where(fades, factor, torch::ones_like(factor))
        .log()
        .masked_fill(factor.le(0), kHidden);
  }

  // How many distances the heads see.
  static std::vector<int64_t> reaches(const Tensor& log_factors) {
    const Tensor counts =
        log_factors.detach().ne(kHidden).sum(1).to(torch::kCPU).contiguous();
    return {counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel()};
  }

  static Layout windows(int64_t queries, int64_t keys,
                        const std::vector<int64_t>& reaches) {
    std::vector<int64_t> known;
    std::vector<Pattern> patterns;
    Layout::Choice choice{.heads = static_cast<int64_t>(reaches.size()), .pattern = {}};
    for (const int64_t reach : reaches) {
      const auto found = std::ranges::find(known, reach);
      choice.pattern.push_back(static_cast<int32_t>(found - known.begin()));
      if (found != known.end()) continue;
      known.push_back(reach);
      const int64_t end = keys - queries + 1;
      patterns.push_back([=](int64_t query, std::vector<Span>& spans) {
        spans.push_back({query + end - reach, query + end});
      });
    }
    return {queries, keys, patterns, std::move(choice)};
  }

  // After an update of the parameters, before anything is computed with them.
  void bring_into_range() {
    const torch::NoGradGuard changing;
    if (span_.lt(0).logical_or(span_.gt(1)).any().item<bool>()) span_.clamp_(0, 1);
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    if (pass.training && !pass.replay) bring_into_range();
    Prepared prepared = prepare(q, k, v, pass);
    Source& source = prepared.source;
    const int64_t keys = prepared.key_count();
    const Tensor table = log_factors();
    const std::vector<int64_t> reach = reaches(table);
    const int64_t most = std::ranges::max(reach);
    source.layout = windows(prepared.query_count(), keys, reach);
    source.bias.table = table.slice(1, 0, most);
    if (key_positions_.defined())
      source.bias.vectors = key_positions_.slice(0, 0, most).unsqueeze(0);
    Record* const state = pass.state;
    if (state)
      source.positions = torch::arange(state->tokens - keys, state->tokens,
                                       q.options().dtype(torch::kLong));
    const Tensor out =
        block_attention(prepared.queries, {source}, prepared.options).out;
    if (state && keys >= most)
      keep_keys(*state, torch::arange(keys - most + 1, keys, torch::kLong));
    if (pass.training)
      pass.add_loss("adaptive_span",
                    loss_ * static_cast<double>(longest_) * average(exact_span()));
    return out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t group = q.size(1) / k.size(1), tokens = q.size(2);
    const Positions at(tokens);
    const Tensor distance = (at.query - at.key).to(q.device());
    const Tensor span = exact_span().view({-1, 1, 1});
    const Tensor factor = (ramp_ + span * longest_ - distance) / ramp_;  // [H, N, N]
    const Tensor at_most_1 =
        torch::where(factor.lt(1), factor, torch::ones_like(factor));
    const Tensor hidden = (allowed_pairs(pass, tokens, tokens, q.device()) &
                           factor.gt(0) & distance.lt(longest_))
                              .logical_not();
    Tensor scores = q.matmul(k.repeat_interleave(group, 1).transpose(2, 3));
    if (key_positions_.defined())
      scores =
          scores + q.matmul(key_positions_.t())
                       .gather(3, distance.clamp(0, longest_ - 1).expand_as(scores));
    scores = (scores / std::sqrt(static_cast<double>(q.size(3))))
                 .masked_fill(hidden, hidden_score(q.scalar_type()));
    const Tensor weights = ((scores - scores.detach().amax(3, /*keepdim=*/true)).exp() *
                            at_most_1.to(q.scalar_type()))
                               .masked_fill(hidden, 0);
    const Tensor sum = weights.sum(3, /*keepdim=*/true);
    return (weights / sum.masked_fill(sum == 0, 1))
        .matmul(v.repeat_interleave(group, 1));
  }

  int64_t longest_, ramp_;
  double loss_;
  Tensor span_;           // [H], in parts of longest
  Tensor key_positions_;  // [longest, d]
};

constexpr Setting kSettings[] = {
    {.name = "longest",
     .standard = "1024",
     .help = "tokens that a head can see at most, itself included",
     .least = 1},
    {.name = "ramp",
     .standard = "32",
     .help = "tokens over which weights fade to 0 at the end of a span",
     .least = 1},
    {.name = "initial",
     .kind = Kind::number,
     .standard = "0",
     .help = "the span at first, as a part of longest",
     .least = 0},
    {.name = "loss",
     .kind = Kind::number,
     .standard = "2e-6",
     .help = "what a token of the mean span adds to the loss",
     .least = 0},
    {.name = "positions",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "a learned vector for every distance, added to the keys"},
};

constexpr Preset kPresets[] = {{"paper", "{longest: 8192}"}};

}  // namespace

constinit const Mechanism catalogue::adaptive_span{
    .name = "adaptive_span",
    .summary = "a window into the past whose length every head learns",
    .paper = "Sukhbaatar et al. 2019, arXiv:1905.07799",
    .classes = "fixed patterns",
    .time = {"N*longest*d", 1},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::always,
            .padding = true,
            .decoding = true,
            .segments = true,
            .dropout = true,
            .grouped = true},
    .state = "keys and values of the last longest tokens at most",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
          return PatternAttention::numbers_kept(
              std::min(tokens, settings.integer("longest")), sizes);
        },
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{longest: 40, ramp: 10}",
    .make = made_as<Attention, AdaptiveSpan>(),
};

}  // namespace longspan
