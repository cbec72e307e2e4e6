// Blocks of tokens that see themselves, and the summaries of all other blocks. Ren et
// al. 2021, arXiv:2107.05768, "Combiner-Fixed".
//
// The own block is no summary in the bidirectional form either: each key counts once.

#include <optional>

#include "longspan/attention/combiner.h"
#include "longspan/attention/kept.h"
#include "longspan/attention/pattern_attention.h"

namespace longspan {
namespace {

using torch::Tensor;

class CombinerFixed final : public Combiner {
 public:
  CombinerFixed(const Settings& settings, const Sizes& sizes)
      : Combiner(settings, sizes), span_(settings.integer("span")) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t span = settings.integer("span"), left = tokens % span,
                  summaries = tokens / span;
    return PatternAttention::numbers_kept(left, sizes) +
           left * sizes.heads * sizes.head_width +
           summaries * (sizes.heads * (sizes.head_width + sizes.value_width) + 1);
  }

 private:
  // Of `count` queries after `first` tokens, over `held` keys of whole blocks.
  struct Place {
    int64_t count, first, held;
    bool causal;

    bool operator==(const Place&) const = default;
  };

  struct Laid {
    std::vector<Span> blocks;  // of the keys; causal: the whole ones
    Layout members, own;
    std::optional<Layout> others;
  };

  Laid laid(const Place& place) const {
    const auto [count, first, held, causal] = place;
    const int64_t begin = first + count - held,  // of the first key: of a block
        whole = causal ? held / span_ * span_ : held, span = span_;
    Laid laid{.blocks = equal_spans(whole, span, span),
              .members = Layout((whole + span - 1) / span, whole,
                                [=](int64_t block, std::vector<Span>& seen) {
                                  seen.push_back({block * span, (block + 1) * span});
                                }),
              .own = Layout(count, held,
                            [=](int64_t query, std::vector<Span>& seen) {
                              const int64_t at = first + query - begin,
                                            from = at / span * span;
                              seen.push_back({from, causal ? at + 1 : from + span});
                            }),
              .others = {}};
    const int64_t blocks = begin / span + static_cast<int64_t>(laid.blocks.size());
    laid.others.emplace(count, blocks, [=](int64_t query, std::vector<Span>& seen) {
      const int64_t own = (first + query) / span;
      seen.push_back({0, own});
      if (!causal) seen.push_back({own + 1, blocks});
    });
    return laid;
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    auto& [queries, source, options, global, order] = prepared;
    const Place place{.count = q.size(2),
                      .first = queries.first,
                      .held = source.k.size(2),
                      .causal = pass.mask.causal};
    const auto make = [&] { return this->laid(place); };
    const std::shared_ptr<const Laid> laid =
        pass.state ? std::make_shared<const Laid>(make()) : laid_.get(place, make);
    const int64_t whole = laid->members.keys();
    Tensor all = q;  // queries of the tokens whose keys are held
    if (pass.state && pass.state->get("q").defined())
      all = torch::cat({pass.state->get("q"), q}, 2);
    const Tensor real =
        source.to.defined() ? source.to.squeeze(1).slice(1, 0, whole) > 0 : Tensor();
    const auto part = [&](const Tensor& x) { return x.slice(-2, 0, whole); };
    const auto pooled = [&](const Tensor& x) {
      return pooling().pooled(x, real, laid->blocks);
    };
    Source tokens{.k = part(source.k), .v = part(source.v), .layout = laid->members};
    if (real.defined()) tokens.to = source.to.slice(2, 0, whole);
    Summaries summaries =
        pooling().summaries(pooled(pooling().of_queries(part(all))),
                            pooled(pooling().of_keys(part(source.k))), tokens);
    if (pass.state) {
      summaries = summaries.joined(pass.state->part("summaries"));
      pass.state->set("q", all.slice(2, whole).clone());
      keep_keys(*pass.state, torch::arange(whole, place.held));
    }
    source.layout = laid->own;
    return block_attention(queries, {source, summaries.source(*laid->others)}, options)
        .out;
  }

  std::vector<Plan> plans(int64_t tokens, bool causal) const override {
    const Positions at(tokens);
    const auto block = [&](const Tensor& x) { return torch::div(x, span_, "floor"); };
    const Tensor span = torch::arange((tokens + span_ - 1) / span_);
    const Tensor own = block(at.query) == block(at.key);
    return {{.direct = causal ? own & (at.key <= at.query) : own,
             .members = span.unsqueeze(1) == block(at.key),
             .spans = causal ? span < block(at.query) : span != block(at.query)}};
  }

  int64_t span_;
  Kept<Place, Laid> laid_;
};

constexpr Setting kSettings[] = {
    {.name = "span", .standard = "128", .help = "tokens of a block", .least = 1},
    kSummary,
};

}  // namespace

constinit const Mechanism catalogue::combiner_fixed{
    .name = "combiner_fixed",
    .summary = "blocks of tokens, and the summaries of all other blocks",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "fixed patterns, low rank",
    .time = {"N*(span + N/span)*d", 2},
    .memory = {"N*d", 1},
    .can = kCombinerAbilities,
    .state =
        "queries, keys and values of the tokens after the last whole block, and "
        "N/span summaries",
    .state_size = CombinerFixed::state_size,
    .full = true,
    .settings = kSettings,
    .test_settings = "{span: 9, summary: deepsets_max}",
    .make = made_as<Attention, CombinerFixed>(),
};

}  // namespace longspan
