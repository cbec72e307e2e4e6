// Attention over keys and values that a learned projection of the places makes few: a
// matrix [projected, longest] times the sequence, of which a shorter one uses the first
// columns. Wang et al. 2020, arXiv:2006.04768.
//
// The place of a token is how many real ones are before it, wherever padding stands.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/attention/real_first.h"
#include "longspan/base/error.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/pool.h"

namespace longspan {
namespace {

using torch::Tensor;

class Linformer final : public Attention {
 public:
  Linformer(const Settings& settings, const Sizes& sizes, Shared& shared)
      : projected_(settings.integer("projected")),
        longest_(sizes.longest),
        by_(settings.word("by")) {
    require(longest_ >= 1,
            "the longest sequence must be known, for the weights of its places; give "
            "Sizes::longest");
    if (by_ != "learned") return;
    const std::string& sharing = settings.word("sharing");
    const auto uniform = [&](int64_t heads) {
      const double bound = 1 / std::sqrt(static_cast<double>(projected_));
      return torch::empty({heads, projected_, longest_}).uniform_(-bound, bound);
    };
    if (sharing == "layerwise") {
      keys_ = values_ = shared.parameter("linformer", [&] { return uniform(1); });
      require(keys_.size(1) == projected_ && keys_.size(2) == longest_,
              "layers that share a projection must have one number of projected keys ",
              "and one longest sequence, got ", projected_, " and ", longest_,
              " after ", keys_.size(1), " and ", keys_.size(2));
    } else if (sharing == "key_value") {
      keys_ = values_ = register_parameter("projection", uniform(1));
    } else {
      const int64_t heads = sharing == "none" ? sizes.key_heads : 1;
      keys_ = register_parameter("key_projection", uniform(heads));
      values_ = register_parameter("value_projection", uniform(heads));
    }
  }

  Sight sight(int64_t tokens, bool) override {
    return {.pairs = torch::full({1, tokens, tokens},
                                 static_cast<int64_t>(Sees::summarised), torch::kByte)};
  }

 private:
  int64_t window() const { return (longest_ + projected_ - 1) / projected_; }
  Pooling pooling() const { return by_ == "max" ? Pooling::max : Pooling::mean; }

  void check_length(int64_t keys) const {
    require(keys <= longest_, "made for sequences of at most ", longest_,
            " tokens, got ", keys);
  }

  // x [B, Hk, M, w] by weights [1|Hk, projected, longest]: [B, Hk, projected, w].
  static Tensor projected(const Tensor& x, const Tensor& weights) {
    const int64_t examples = x.size(0), keys = x.size(2), width = x.size(3),
                  each = weights.size(0), alike = x.size(1) / each;
    // One product for all that is projected alike: its gradient sums up in it.
    const Tensor columns = x.reshape({examples, each, alike, keys, width})
                               .permute({1, 3, 0, 2, 4})
                               .reshape({each, keys, examples * alike * width});
    return longspan::matmul(weights.slice(2, 0, keys), columns)
        .view({each, weights.size(1), examples, alike, width})
        .permute({2, 0, 3, 1, 4})
        .flatten(1, 2);
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    const int64_t keys = k.size(2);
    check_length(keys);
    const auto [queries, tokens, options, global, order] = prepare(q, k, v, pass);
    Source few{.k = tokens.k, .v = tokens.v};
    Tensor real, seen;  // [B, M], [B, projected keys]
    if (tokens.to.defined()) {
      const RealFirst first(tokens.to.squeeze(1) > 0);
      few.k = first.moved(few.k);
      few.v = first.moved(few.v);
      real = first.real();
    }
    if (by_ == "learned") {
      few.k = projected(few.k, keys_);
      few.v = projected(few.v, values_);
      if (real.defined()) seen = real.any(1, /*keepdim=*/true).expand({-1, projected_});
    } else {
      const auto spans = equal_spans(keys, window(), window());
      const auto pooled = [&](const Tensor& x) {
        const Tensor keep = real.defined() ? real.unsqueeze(1) : Tensor();
        return pool_spans({.x = x, .keep = keep}, spans, pooling()).out;
      };
      few.k = pooled(few.k);
      few.v = pooled(few.v);
      if (real.defined()) seen = real.slice(1, 0, keys, window());
    }
    if (seen.defined()) few.to = open_where(seen);
    return block_attention(queries, {few}, options).out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t keys = k.size(2);
    check_length(keys);
    const Tensor tokens = pass.keys(q.size(2), keys).tokens;
    const auto fewer = [&](const Tensor& x, const Tensor& weights) {  // x [Hk, n, w]
      const int64_t count = x.size(1);
      if (by_ == "learned") return weights.slice(2, 0, count).matmul(x).unsqueeze(0);
      std::vector<Tensor> groups = {x.slice(1, 0, 0)};
      for (int64_t at = 0; at < count; at += window()) {
        const Tensor group = x.slice(1, at, std::min(at + window(), count));
        groups.push_back(by_ == "max" ? group.amax(1, true) : group.mean(1, true));
      }
      return torch::cat(groups, 1).unsqueeze(0);
    };
    std::vector<Tensor> outs;
    for (int64_t example = 0; example < q.size(0); ++example) {
      Tensor places = torch::arange(keys, q.options().dtype(torch::kLong));
      if (tokens.defined())
        places = places.masked_select(tokens[example].to(q.device()));
      const auto real = [&](const Tensor& x) {
        return x[example].index_select(1, places);
      };
      const Tensor few_k = fewer(real(k), keys_), few_v = fewer(real(v), values_);
      const Tensor seen =
          torch::full({1, 1, q.size(2), few_k.size(2)}, places.size(0) > 0,
                      q.options().dtype(torch::kBool));
      outs.push_back(
          masked_attention(q.slice(0, example, example + 1), few_k, few_v, seen, pass));
    }
    return torch::cat(outs);
  }

  int64_t projected_, longest_;
  std::string by_;
  Tensor keys_, values_;  // [1|Hk, projected, longest]
};

constexpr Setting kSettings[] = {
    {.name = "projected",
     .standard = "256",
     .help = "keys and values that are left, whatever the length",
     .least = 1},
    {.name = "sharing",
     .kind = Kind::word,
     .standard = "key_value",
     .help = "none: every head has a projection of keys and one of values; headwise: "
             "every layer; key_value: every layer has one for both; layerwise: all "
             "layers have one for both",
     .choices = "none|headwise|key_value|layerwise"},
    {.name = "by",
     .kind = Kind::word,
     .standard = "learned",
     .help = "what makes them few: learned projections, or the mean or largest of "
             "longest / projected neighbours; memory_compressed has a convolution",
     .choices = "learned|mean|max"},
};

// As the Long Range Arena runs it: one projection a layer.
constexpr Preset kPresets[] = {{"lra", "{projected: 16}"}};

}  // namespace

constinit const Mechanism catalogue::linformer{
    .name = "linformer",
    .summary = "keys and values made few by a learned projection of the places",
    .paper = "Wang et al. 2020, arXiv:2006.04768",
    .classes = "low rank",
    .time = {"N*projected*d", 1},
    .memory = {"N*d + projected*longest", 1},
    .can = {.causal = Causal::never,
            .padding = true,
            .cross = true,
            .dropout = true,
            .grouped = true},
    .full = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{projected: 16}",
    .make = Mechanism::Make<Attention>(
        [](const Settings& settings, const Sizes& sizes,
           const std::shared_ptr<Shared>& shared) -> std::shared_ptr<Attention> {
          return std::make_shared<Linformer>(settings, sizes, *shared);
        }),
};

}  // namespace longspan
