// Attention whose scores are made without comparing tokens: from each query alone, or
// learned for every pair of places. Tay et al. 2020, arXiv:2005.00743.
//
// Places are counted from the first token of the sequence, so padding on the left moves
// tokens to other weights. The parts of a mixture are weighed, head by head, by a
// softmax of learned numbers.

#include <torch/nn/init.h>
#include <algorithm>
#include <cmath>
#include <string_view>

#include "longspan/attention/attention_watch.h"
#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/recompute.h"
#include "longspan/kernels/rows.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// How the score of query i and key j is made.
enum Way {
  kDense,             // keys[j] . relu(map(x_i)) + bias[j]
  kRandom,            // table[i][j], learned
  kFixed,             // table[i][j], not learned
  kFactorisedDense,   // one[j mod period] * other[j div period], both maps of x_i
  kFactorisedRandom,  // queries[i] . keys[j]
  kDot,               // that of dense attention
};
constexpr std::string_view kWays =
    "dense|random|fixed|factorised_dense|factorised_random|dot";

std::vector<Way> parts_of(const Settings& settings) {
  const std::vector<std::string> names = split_choices(kWays);
  std::vector<Way> parts;
  for (const Value& value : settings.list("parts")) {
    const auto* const word = value.as<std::string>();
    require(word != nullptr, "parts must be a list of words, got ",
            Value(settings.list("parts")).text());
    const auto found = std::ranges::find(names, *word);
    require(found != names.end(), "parts: no choice '", *word, "'", hint(*word, names));
    const auto part = static_cast<Way>(found - names.begin());
    require(std::ranges::find(parts, part) == parts.end(), "parts must name '", *word,
            "' once");
    parts.push_back(part);
  }
  require(!parts.empty(), "parts must name at least one of ", joined(names));
  return parts;
}

// What rows of queries are attended with.
struct Rows {
  Tensor q = {}, k = {}, v = {};   // [B, H, n, w], [B|1, H, M, w], [B, H, M, dv]
  Tensor column = {};              // [1, H, M]
  Tensor residue = {};             // [B, H, n, period]
  Tensor quotient = {};            // [B, H, n, L/period]
  Tensor random = {}, fixed = {};  // [H, n, L]
  Tensor mixture = {};             // [H, parts], or undefined for one part

  std::vector<Tensor> list() const {
    return {or_none(q),      or_none(k),       or_none(v),
            or_none(column), or_none(residue), or_none(quotient),
            or_none(random), or_none(fixed),   or_none(mixture)};
  }

  static Rows of(const std::vector<Tensor>& all) {
    const auto at = [&](size_t i) { return unless_none(all[i]); };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8)};
  }
};

class Synthesizer final : public Mixer {
 public:
  Synthesizer(const Settings& settings, const Sizes& sizes)
      : sizes_(sizes), parts_(parts_of(settings)) {
    require(sizes.longest >= 1, "its weights are for sequences up to a longest one: ",
            "sizes.longest must be 1 or more, got ", sizes.longest);
    const int64_t heads = sizes.heads, longest = sizes.longest,
                  embedding = sizes.embedding, rank = settings.integer("factor");
    const auto learned = [&](const char* name, const Tensor& initial) {
      return register_parameter(name, initial);
    };
    if (has(kDense)) {
      const int64_t given = settings.integer("hidden");
      const int64_t hidden = given > 0 ? given : sizes.head_width;
      hidden_ = make_linear(*this, "dense_hidden", heads * hidden, embedding,
                            /*has_bias=*/true);
      dense_keys_ = learned("dense_keys", torch::empty({heads, longest, hidden}));
      for (int64_t head = 0; head < heads; ++head)
        torch::nn::init::xavier_uniform_(dense_keys_[head]);
      dense_bias_ = learned("dense_bias", torch::zeros({heads, longest}));
    }
    const auto table = [&] {
      return torch::randn({heads, longest, longest}) /
             std::sqrt(static_cast<double>(longest));
    };
    if (has(kRandom)) random_ = learned("random", table());
    if (has(kFixed)) fixed_ = register_buffer("fixed", table());
    if (has(kFactorisedRandom)) {
      // Products have the variance of random scores.
      const double scale = std::pow(static_cast<double>(rank * longest), -0.25);
      const auto factor = [&](const char* name) {
        return learned(name, scale * torch::randn({heads, longest, rank}));
      };
      factor_queries_ = factor("factor_queries");
      factor_keys_ = factor("factor_keys");
    }
    if (has(kFactorisedDense)) {
      const int64_t given = settings.integer("period");
      const auto root = std::ceil(std::sqrt(static_cast<double>(longest)));
      period_ = std::min(given > 0 ? given : static_cast<int64_t>(root), longest);
      const int64_t quotients = (longest + period_ - 1) / period_;
      residue_ = make_linear(*this, "residue", heads * period_, embedding, false);
      quotient_ = make_linear(*this, "quotient", heads * quotients, embedding, false);
    }
    if (has(kDot)) {
      q_ = make_linear(*this, "q", heads * sizes.head_width, embedding, true);
      k_ = make_linear(*this, "k", sizes.key_heads * sizes.head_width, embedding, true);
    }
    v_ = make_linear(*this, "v", sizes.key_heads * sizes.value_width, embedding, true);
    out_ = make_linear(*this, "out", embedding, heads * sizes.value_width, true);
    if (parts_.size() > 1)
      mixture_ = learned("mixture",
                         torch::zeros({heads, static_cast<int64_t>(parts_.size())}));
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const std::vector<Way> parts = parts_of(settings);
    const bool dot = std::ranges::find(parts, kDot) != parts.end();
    return tokens * sizes.key_heads *
           (sizes.value_width + (dot ? sizes.head_width : 0));
  }

 private:
  bool has(Way part) const { return std::ranges::find(parts_, part) != parts_.end(); }

  void check_length(int64_t tokens) const {
    require(tokens <= sizes_.longest, "has weights for ", sizes_.longest,
            " tokens (sizes.longest), got ", tokens);
  }

  // [H, parts], undefined for one part.
  Tensor mixture() const {
    return mixture_.defined() ? at_least_float(mixture_).softmax(1) : Tensor();
  }

  // x [B|1, H, ..] times the share that each head gives to `part`, in the type that is
  // computed in.
  Tensor share(const Tensor& mixture, Way part, const Tensor& x) const {
    if (!mixture.defined()) return x;
    const int64_t place = std::ranges::find(parts_, part) - parts_.begin();
    std::vector<int64_t> shape(x.dim(), 1);
    shape[1] = sizes_.heads;
    return at_least_float(x) *
           spread(mixture.select(1, place).view(shape), x.sizes()).to(inner_dtype(x));
  }

  // All rows: those of x at the places from `first` on. k and v are of all tokens.
  Rows rows_of(const Tensor& x, int64_t first, const Tensor& k, const Tensor& v) const {
    const int64_t examples = x.size(0), heads = sizes_.heads, count = x.size(1),
                  keys = first + count;
    Rows rows{.v = for_heads(v, heads), .mixture = mixture()};
    const auto mixed = [&](Way part, const Tensor& y) {
      return share(rows.mixture, part, y);
    };
    // Dot products side by side are the sum of their scores.
    std::vector<Tensor> queries, to;
    if (has(kDense)) {
      // The bias is added before the product is rounded: else what is nearly 0 may come
      // to lie on the other side of the kink.
      const Tensor hidden = activate(hidden_(x), Tensor(), Activation::relu);
      queries.push_back(mixed(kDense, in_heads(hidden, heads)));
      to.push_back(dense_keys_.slice(1, 0, keys).unsqueeze(0));
      rows.column = mixed(kDense, dense_bias_.slice(1, 0, keys).unsqueeze(0));
    }
    if (has(kFactorisedRandom)) {
      queries.push_back(
          mixed(kFactorisedRandom, factor_queries_.slice(1, first, keys).unsqueeze(0)));
      to.push_back(factor_keys_.slice(1, 0, keys).unsqueeze(0));
    }
    if (has(kDot)) {
      const double scale = 1 / std::sqrt(static_cast<double>(sizes_.head_width));
      queries.push_back(mixed(kDot, scale * at_least_float(in_heads(q_(x), heads))));
      to.push_back(for_heads(k, heads));
    }
    if (queries.empty()) {
      queries.push_back(torch::zeros({1, 1, 1, 1}, x.options()));
      to.push_back(torch::zeros({1, heads, keys, 1}, x.options()));
    }
    const auto beside = [&](std::vector<Tensor>& all, int64_t most, int64_t n) {
      for (Tensor& one : all) one = spread(one, {most, heads, n, one.size(3)});
      return all.size() == 1 ? all[0] : torch::cat(all, 3);
    };
    for (Tensor& one : queries) one = at_least_float(one);
    rows.q = beside(queries, examples, count).to(x.scalar_type());  // rounded once
    rows.k = beside(to, has(kDot) ? examples : 1, keys);
    if (has(kFactorisedDense)) {
      rows.residue = mixed(kFactorisedDense, in_heads(residue_(x), heads));
      rows.quotient = in_heads(quotient_(x), heads);
    }
    if (has(kRandom)) rows.random = random_.slice(1, first, keys);
    if (has(kFixed)) rows.fixed = fixed_.slice(1, first, keys);
    return rows;
  }

  // The scores that are no dot products, [B|1, H, n, keys], or undefined.
  Tensor bias_of(const Rows& rows, int64_t keys) const {
    Tensor sum;
    if (rows.residue.defined()) {
      const int64_t quotients = (keys + period_ - 1) / period_;
      const std::vector<int64_t> shape = {rows.q.size(0), sizes_.heads, rows.q.size(2),
                                          quotients, period_};
      const Tensor quotient = at_least_float(rows.quotient).slice(3, 0, quotients);
      sum = (spread(quotient.unsqueeze(4), shape) *
             spread(at_least_float(rows.residue).unsqueeze(3), shape))
                .flatten(3)
                .slice(3, 0, keys);
    }
    const auto add = [&](Way part, const Tensor& table) {
      if (!table.defined()) return;
      const Tensor scores = share(rows.mixture, part,
                                  at_least_float(table.slice(2, 0, keys).unsqueeze(0)));
      sum = sum.defined() ? sum + spread(scores, sum.sizes()) : scores;
    };
    add(kRandom, rows.random);
    add(kFixed, rows.fixed);
    return sum;
  }

  // [B, H, n, dv] for `rows`, the first of which is at the place `start`; `to` of keys.
  Tensor attended(const Rows& rows, int64_t start, const Tensor& to, bool causal,
                  const BlockAttention& options) const {
    const int64_t count = rows.q.size(2),
                  keys = causal ? start + count : rows.k.size(2);
    Source source{.k = rows.k.slice(2, 0, keys), .v = rows.v.slice(2, 0, keys)};
    source.layout = Layout(count, keys, causal ? past_keys(start) : all_keys());
    if (to.defined()) source.to = to.slice(2, 0, keys);
    if (rows.column.defined()) source.bias.column = rows.column.slice(2, 0, keys);
    source.bias.dense = bias_of(rows, keys);
    return block_attention({.q = rows.q}, {source}, options).out;
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    const Tensor heads = AttentionWatch::watched(
        *this, in_heads(v_(x), sizes_.key_heads), pass,
        [this, x](const Tensor& v, Pass& now) { return mixed(x, v, now); });
    return out_(joined_heads(heads));
  }

  // The values v [B, Hk, N, dv] of x, mixed: [B, H, N, dv].
  Tensor mixed(const Tensor& x, const Tensor& v, Pass& pass) {
    const int64_t first = pass.state ? pass.state->tokens : 0, count = x.size(1);
    check_length(first + count);
    // Of queries it takes the number only.
    const Prepared prepared = prepare(
        v, has(kDot) ? in_heads(k_(x), sizes_.key_heads) : v.slice(3, 0, 0), v, pass);
    const Rows all = rows_of(x, first, prepared.source.k, prepared.source.v);

    // Biases are made for some rows at a time, and again for their gradient, unless
    // they are a table as it is.
    constexpr int64_t kAtOnce = 128;
    const bool has_table = has(kRandom) || has(kFixed);
    const bool cut = has(kFactorisedDense) || (has_table && mixture_.defined());
    const int64_t each = cut ? kAtOnce : std::max<int64_t>(count, 1);
    const auto split = [&](const Tensor& tensor, int64_t axis) {
      return tensor.defined() ? tensor.split(each, axis) : std::vector<Tensor>();
    };
    const auto q = split(all.q, 2), residue = split(all.residue, 2),
               quotient = split(all.quotient, 2), random = split(all.random, 1),
               fixed = split(all.fixed, 1);
    std::vector<Tensor> outs;
    for (size_t i = 0; i < q.size(); ++i) {
      const auto of = [i](const std::vector<Tensor>& pieces) {
        return pieces.empty() ? Tensor() : pieces[i];
      };
      Rows rows = all;
      rows.q = q[i];
      rows.residue = of(residue);
      rows.quotient = of(quotient);
      rows.random = of(random);
      rows.fixed = of(fixed);
      BlockAttention options = prepared.options;
      options.scale = 1;
      options.dropout.key = mix(options.dropout.key, i);
      const auto attend = [this, self = shared_from_this(), options,
                           to = prepared.source.to, causal = pass.mask.causal,
                           start = first + static_cast<int64_t>(i) * each](
                              const std::vector<Tensor>& list, bool) {
        (void)self;  // kept alive
        return std::vector{attended(Rows::of(list), start, to, causal, options)};
      };
      outs.push_back(
          (cut ? recompute(attend, rows.list(), {}) : attend(rows.list(), false))[0]);
    }
    return outs.size() == 1 ? outs[0] : torch::cat(outs, 2);
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const int64_t count = x.size(1), heads = sizes_.heads,
                  group = heads / sizes_.key_heads;
    check_length(count);
    const auto of = [&](const Linear& map, int64_t in) {
      return in_heads(torch::linear(x, map.weight, map.bias), in);
    };
    const auto table = [&](const Tensor& all) {
      return all.slice(1, 0, count).slice(2, 0, count).unsqueeze(0);
    };
    const auto scores_of = [&](Way part) -> Tensor {
      const Tensor key = torch::arange(count, x.options().dtype(torch::kLong));
      switch (part) {
        case kDense:
          return of(hidden_, heads)
                     .relu()
                     .matmul(dense_keys_.slice(1, 0, count).transpose(1, 2)) +
                 dense_bias_.slice(1, 0, count).unsqueeze(1);
        case kRandom: return table(random_);
        case kFixed: return table(fixed_);
        case kFactorisedDense:
          return of(residue_, heads).index_select(3, key.remainder(period_)) *
                 of(quotient_, heads)
                     .index_select(3, torch::div(key, period_, "floor"));
        case kFactorisedRandom:
          return factor_queries_.slice(1, 0, count)
              .matmul(factor_keys_.slice(1, 0, count).transpose(1, 2))
              .unsqueeze(0);
        default:
          return of(q_, heads).matmul(of(k_, sizes_.key_heads)
                                          .repeat_interleave(group, 1)
                                          .transpose(2, 3)) /
                 std::sqrt(static_cast<double>(sizes_.head_width));
      }
    };
    Tensor scores = torch::zeros({x.size(0), heads, count, count}, x.options());
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Tensor some = scores_of(parts_[i]);
      scores =
          scores + (mixture_.defined()
                        ? mixture_.softmax(1).select(1, i).view({1, -1, 1, 1}) * some
                        : some);
    }
    const Tensor hidden = allowed_pairs(pass, count, count, x.device()).logical_not();
    const Tensor weights = scores.masked_fill(hidden, hidden_score(x.scalar_type()))
                               .softmax(3)
                               .masked_fill(hidden, 0);
    const Tensor mixed =
        weights.matmul(of(v_, sizes_.key_heads).repeat_interleave(group, 1));
    return torch::linear(joined_heads(mixed), out_.weight, out_.bias);
  }

  Sizes sizes_;
  std::vector<Way> parts_;
  int64_t period_ = 0;
  Linear hidden_, residue_, quotient_, q_, k_, v_, out_;
  Tensor dense_keys_, dense_bias_;       // [H, L, hidden], [H, L]
  Tensor random_, fixed_;                // [H, L, L]
  Tensor factor_queries_, factor_keys_;  // [H, L, factor]
  Tensor mixture_;                       // [H, parts], before the softmax
};

constexpr Setting kSettings[] = {
    {.name = "parts",
     .kind = Kind::list,
     .standard = "[dense]",
     .help = "how scores are made, of dense, random, fixed (random, not learned), "
             "factorised_dense, factorised_random and dot (those of dense attention); "
             "of several a learned mixture"},
    {.name = "hidden",
     .standard = "0",
     .help = "width between the two maps of dense; 0: that of a head",
     .least = 0},
    {.name = "factor",
     .standard = "16",
     .help = "width of the two factors of factorised_random",
     .least = 1},
    {.name = "period",
     .standard = "0",
     .help = "factorised_dense: the score of key j is number j mod period of one map "
             "times number j div period of another; 0: about the root of the longest",
     .least = 0},
};

}  // namespace

constinit const Mechanism catalogue::synthesizer{
    .name = "synthesizer",
    .summary = "scores made from each query alone, or learned for pairs of places",
    .paper = "Tay et al. 2020, arXiv:2005.00743",
    .classes = "low rank, learnable patterns",
    .time = {"N*N*d", 2},
    .memory = {"N*d, and L*L with random or fixed", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .dropout = true,
            .grouped = true},
    .state = "values of all tokens, with dot also keys: N*Hk*(d + dv)",
    .state_size = Synthesizer::state_size,
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .test_settings =
        "{parts: [dense, factorised_dense, factorised_random, dot], "
        "hidden: 5, factor: 3, period: 48}",
    .make = made_as<Mixer, Synthesizer>(),
};

}  // namespace longspan
