// A query sees its row of a grid, and each row above (not causal: each other row) in a
// summary. Ren et al. 2021, arXiv:2107.05768, "Combiner-Axial", rowmajor.
//
// As released every place of a row has a summary of the row, which the queries of its
// column see: its value is what its token attends to in the row, and its key is made of
// that and of the layer's input by learned maps. Tokens that are missing in a row have
// inputs of zeros. With a pooled summary of the row this is combiner_fixed.

#include <algorithm>
#include <limits>
#include <memory>

#include "longspan/attention/attention_watch.h"
#include "longspan/attention/combiner.h"
#include "longspan/attention/combiner_axial.h"
#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/head_projections.h"
#include "longspan/attention/kept.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/attention/projected.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/lse_merge.h"

namespace longspan {
namespace {

using torch::Tensor;

// Queries column by column, and the summaries of these columns, row by row.
struct Columns {
  Tensor queries;    // [n]: tokens
  Tensor summaries;  // [columns * rows]
  Layout layout;

  // Of `count` tokens after `first` others, over summaries of the first `rows` rows.
  Columns(int64_t first, int64_t count, int64_t rows, int64_t width, bool causal,
          torch::Device device)
      : layout(0, 0) {
    std::vector<int64_t> tokens, seen, begins;
    for (int64_t token = 0; token < std::min(count, width); ++token) {
      const auto begin = static_cast<int64_t>(seen.size());
      for (int64_t row = 0; row < rows; ++row)
        seen.push_back(row * width + (first + token) % width);
      for (int64_t other = token; other < count; other += width) {
        tokens.push_back(other);
        begins.push_back(begin);
      }
    }
    queries = torch::tensor(tokens, torch::kInt).to(device);
    summaries = torch::tensor(seen, torch::kInt).to(device);
    layout = Layout(count, static_cast<int64_t>(seen.size()),
                    [&](int64_t place, std::vector<Span>& spans) {
                      const auto at = static_cast<size_t>(place);
                      const int64_t row = (first + tokens[at]) / width,
                                    begin = begins[at];
                      spans.push_back({begin, begin + std::min(row, rows)});
                      if (!causal) spans.push_back({begin + row + 1, begin + rows});
                    });
  }
};

// Of `count` queries after `first` tokens, over `held` keys of whole rows.
struct Place {
  int64_t count, first, held;
  bool causal;
  torch::Device device;

  bool operator==(const Place&) const = default;

  int64_t rows(int64_t width) const {  // that have summaries
    return causal ? held / width : (held + width - 1) / width;
  }
};

struct Laid {
  Layout members, own;  // of summaries, and of tokens by themselves
  Columns columns;

  Laid(const Place& place, int64_t width)
      : members(place.rows(width) * width, place.held, block_of_keys(width)),
        own(place.count, place.held,
            [&](int64_t query, std::vector<Span>& seen) {
              const int64_t at = place.held - place.count + query,
                            from = at / width * width;
              seen.push_back({from, place.causal ? at + 1 : from + width});
            }),
        columns(place.first, place.count,
                (place.first + place.count - place.held) / width + place.rows(width),
                width, place.causal, place.device) {}
};

class AxialRowMajor final : public Mixer {
 public:
  AxialRowMajor(const Settings& settings, const Sizes& sizes)
      : width_(settings.integer("width")),
        heads_(sizes.heads),
        projections_(*this, "", sizes, /*has_bias=*/false) {
    mix_ = make_linear(*this, "summary_mix", sizes.embedding,
                       sizes.heads * sizes.value_width, /*has_bias=*/false);
    norm_weight_ =
        register_parameter("summary_norm_weight", torch::ones(sizes.embedding));
    norm_bias_ = register_parameter("summary_norm_bias", torch::zeros(sizes.embedding));
    key_ = make_linear(*this, "summary_key", sizes.heads * sizes.head_width,
                       sizes.embedding, /*has_bias=*/false);
  }

  Sight sight(int64_t tokens, bool causal) override {
    const Positions at(tokens);
    const Tensor own = row(at.query) == row(at.key);
    const Tensor pairs = torch::where(own, static_cast<int64_t>(Sees::directly),
                                      static_cast<int64_t>(Sees::summarised));
    const Tensor hidden = (at.key > at.query) & causal;
    return {.pairs = pairs.masked_fill(hidden, 0).unsqueeze(0).to(torch::kByte)};
  }

  static int64_t state_size(int64_t width, const Sizes& sizes, int64_t tokens) {
    const int64_t left = tokens % width,
                  summary = sizes.heads * (sizes.head_width + sizes.value_width) + 1;
    return PatternAttention::numbers_kept(left, sizes) + left * sizes.embedding +
           (tokens - left) * summary;
  }

 private:
  Tensor row(const Tensor& x) const { return torch::div(x, width_, "floor"); }

  static Tensor without_padding(const Tensor& x, const Pass& pass) {
    const Tensor& real = pass.mask.tokens;
    return real.defined()
               ? x.masked_fill(real.to(x.device()).logical_not().unsqueeze(2), 0)
               : x;
  }

  Tensor run(const Tensor& input, Pass& pass) override {
    const Tensor x = without_padding(input, pass);
    // For whom weighs other values the keys of summaries stay as these make them.
    const auto summary_keys = std::make_shared<Tensor>();
    const Tensor heads =
        AttentionWatch::watched(*this, projections_.v(x), pass,
                                [this, x, summary_keys](const Tensor& v, Pass& now) {
                                  return mixed(x, v, *summary_keys, now);
                                });
    return projections_.out(heads);
  }

  Tensor mixed(const Tensor& x, const Tensor& v, Tensor& summary_keys, Pass& pass) {
    Prepared prepared = prepare(projections_.q(x), projections_.k(x), v, pass);
    auto& [queries, source, options, global, order] = prepared;
    const Place place{.count = x.size(1),
                      .first = queries.first,
                      .held = source.k.size(2),
                      .causal = pass.mask.causal,
                      .device = x.device()};
    const std::shared_ptr<const Laid> laid =
        pass.state ? std::make_shared<const Laid>(place, width_)
                   : laid_.get(place, [&] { return Laid(place, width_); });
    const int64_t held = place.held, whole = laid->members.queries();
    const auto in_rows = [&](const Tensor& y) {  // of the tokens whose keys are held
      return torch::constant_pad_nd(y.slice(-2, 0, whole),
                                    {0, 0, 0, std::max<int64_t>(whole - held, 0)});
    };
    Tensor all = x, asking = queries.q;
    if (pass.state && pass.state->get("x").defined()) {
      all = torch::cat({pass.state->get("x"), x}, 1);
      asking = projections_.q(all);
    }
    source.layout = laid->members;
    const Attended in_row = block_attention({.q = in_rows(asking)}, {source});
    if (!summary_keys.defined()) summary_keys = keys_of_rows(in_rows(all), in_row);
    Summaries summaries{.k = summary_keys, .v = in_row.out};
    // A row of missing tokens has none, if there are such.
    if (source.to.defined())
      summaries.valid =
          in_row.lse.select(1, 0).detach() > -std::numeric_limits<double>::infinity();
    if (pass.state) {
      summaries = summaries.joined(pass.state->part("summaries"));
      pass.state->set("x", all.slice(1, whole));
      keep_keys(*pass.state, torch::arange(whole, held));
    }

    Attended by_row;
    if (place.causal || options.dropout.probability > 0) {
      source.layout = laid->own;
      by_row = block_attention(queries, {source}, options);
    } else {
      by_row = {in_row.out.slice(2, 0, place.count),
                in_row.lse.slice(2, 0, place.count)};
    }
    Source above = summaries.source(laid->columns.layout);
    above.rows = laid->columns.summaries;
    above.rows_once = true;
    queries.rows = laid->columns.queries;
    if (pass.training && pass.dropout > 0) options.dropout.key = pass.draw.key();
    const Attended by_column = block_attention(queries, {above}, options);
    return merge({by_row, by_column}).out;
  }

  // The summary's key at every place in the rows of x [B, rows * width, E], with what
  // it sees in its row.
  Tensor keys_of_rows(const Tensor& x, const Attended& in_row) const {
    return in_heads(key_(longspan::layer_norm(x + mix_(joined_heads(in_row.out)),
                                              norm_weight_, norm_bias_)),
                    heads_);
  }

  Tensor define(const Tensor& input, Pass& pass) override {
    const int64_t tokens = input.size(1),
                  whole = (tokens + width_ - 1) / width_ * width_;
    const auto filled = [&](const Tensor& x) {
      return torch::constant_pad_nd(x, {0, 0, 0, whole - tokens});
    };
    const Tensor x = filled(without_padding(input, pass));
    const Tensor real =
        filled((pass.mask.tokens.defined()
                    ? pass.mask.tokens.to(x.device())
                    : torch::ones({1, tokens}, x.options().dtype(torch::kBool)))
                   .unsqueeze(2))
            .transpose(1, 2)
            .unsqueeze(1);  // [B|1, 1, 1, whole]
    const Tensor q = projections_.q(x), k = projections_.k(x), v = projections_.v(x);
    const Positions at(whole);
    const bool causal = pass.mask.causal;
    const auto of_pairs = [&](const Tensor& pairs) { return pairs.to(x.device()); };
    const Tensor same_row = of_pairs(row(at.query) == row(at.key));
    const Tensor same_column =
        of_pairs(at.query.remainder(width_) == at.key.remainder(width_));
    const Tensor in_row = same_row & real;
    const Tensor values = masked_attention(q, k, v, in_row, Pass());
    const Tensor keys = torch::linear(
        layer_norm_reference(x + torch::linear(joined_heads(values), mix_.weight),
                             norm_weight_, norm_bias_),
        key_.weight);
    const Tensor past = of_pairs(at.key <= at.query) | !causal;
    const Tensor summarised =
        same_column & same_row.logical_not() & past & in_row.any(3).unsqueeze(2);
    const auto for_queries = [&](const Tensor& y) {
      return y.repeat_interleave(heads_ / y.size(1), 1);
    };
    const Tensor out =
        masked_attention(q, torch::cat({for_queries(k), in_heads(keys, heads_)}, 2),
                         torch::cat({for_queries(v), values}, 2),
                         torch::cat({in_row & past, summarised}, 3), Pass());
    return projections_.out(out).slice(1, 0, tokens);
  }

  int64_t width_, heads_;
  HeadProjections projections_;
  Linear mix_, key_;  // Wo1 and Wk2 of the paper's code
  Tensor norm_weight_, norm_bias_;
  Kept<Place, Laid> laid_;
};

constexpr Setting kSettings[] = {
    kGridWidth,
    {.name = "summary",
     .kind = Kind::word,
     .standard = "projected",
     .help =
         "of a row: projected, for each column by a learned layer; none, its largest "
         "query and key as in combiner_fixed; or how else they become one, deepsets: "
         "after a learned layer",
     .choices = "projected|none|mean|deepsets_max|deepsets_mean"},
};

// The settings of combiner_fixed that are those for a pooled summary.
Value::Map pooled(const Settings& settings) {
  const std::string& summary = settings.word("summary");
  return {{"span", Value(settings.integer("width"))},
          {"summary", Value(summary == "none" ? "max" : summary)}};
}

bool is_projected(const Settings& settings) {
  return settings.word("summary") == "projected";
}

std::shared_ptr<Mixer> made(const Settings& settings, const Sizes& sizes,
                            const std::shared_ptr<Shared>& shared) {
  if (is_projected(settings)) return std::make_shared<AxialRowMajor>(settings, sizes);
  return make_mixer(catalogue::combiner_fixed, sizes, pooled(settings), shared);
}

int64_t state_size(const Settings& settings, const Sizes& sizes, int64_t tokens) {
  if (is_projected(settings))
    return AxialRowMajor::state_size(settings.integer("width"), sizes, tokens);
  const Mechanism& fixed = catalogue::combiner_fixed;
  return fixed.state_size(
      Settings::complete(fixed.name, fixed.settings, pooled(settings), sizes.layer,
                         sizes.layers),
      sizes, tokens);
}

}  // namespace

constinit const Mechanism catalogue::combiner_axial_rowmajor{
    .name = "combiner_axial_rowmajor",
    .summary = "a row of a grid, and the summaries of the other rows",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "fixed patterns, low rank",
    .time = {"N*(width + N/width)*d", 2},
    .memory = {"N*d", 1},
    .can = kCombinerAbilities,
    .state =
        "inputs, keys and values of the tokens after the last whole row, and a "
        "summary for every token before",
    .state_size = state_size,
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .test_settings = "{width: 9}",
    .make = Mechanism::Make<Mixer>(made),
};

}  // namespace longspan
