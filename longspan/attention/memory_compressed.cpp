// Attention over keys and values that a convolution makes fewer: every `factor` tokens
// become one, each head by itself. Liu et al. 2018, arXiv:1801.10198.
//
// A causal query sees the groups that are complete; before the first there is only a
// learned key and value, which all queries see. Where no key is real, nothing is seen.

#include <torch/nn/init.h>
#include <algorithm>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

class MemoryCompressed final : public Attention {
 public:
  MemoryCompressed(const Settings& settings, const Sizes& sizes)
      : factor_(settings.integer("factor")), null_(settings.flag("null_key")) {
    const int64_t heads = sizes.key_heads;
    const auto convolution = [&](const std::string& name, int64_t width) {
      Convolution made{
          register_parameter(name + "_weight",
                             torch::empty({heads, factor_ * width, width})),
          register_parameter(name + "_bias", torch::zeros({heads, width}))};
      for (int64_t head = 0; head < heads; ++head)
        torch::nn::init::xavier_uniform_(made.weight[head]);
      return made;
    };
    keys_ = convolution("key", sizes.head_width);
    values_ = convolution("value", sizes.value_width);
    null_key_ = register_parameter("null_key", torch::zeros({heads, sizes.head_width}));
    null_value_ =
        register_parameter("null_value", torch::zeros({heads, sizes.value_width}));
  }

  Sight sight(int64_t tokens, bool causal) override {
    const Positions at(tokens);
    const Tensor end = (torch::div(at.key, factor_, "floor") + 1) * factor_;
    const Tensor seen = causal ? end <= at.query + 1 : end.expand({tokens, -1}) > 0;
    return {.pairs = seen.unsqueeze(0).to(torch::kByte) *
                     static_cast<int64_t>(Sees::summarised)};
  }

 private:
  struct Convolution {
    Tensor weight;  // [Hk, factor*w, w]
    Tensor bias;    // [Hk, w]

    // x [B, Hk, G*factor, w] -> [B, Hk, G, w]
    Tensor operator()(const Tensor& x) const {
      const int64_t examples = x.size(0), heads = x.size(1), width = x.size(3),
                    count = x.size(2) * width / weight.size(1);
      const Tensor groups =
          x.transpose(0, 1).reshape({heads, examples * count, weight.size(1)});
      const Tensor rows = longspan::matmul(groups, weight);
      return (rows + spread(bias.unsqueeze(1), rows.sizes()))
          .view({heads, examples, count, width})
          .transpose(0, 1);
    }
  };

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    // In decoding the tokens after the last group of the past, then the new ones.
    const auto& [queries, tokens, options, global, order] = prepared;
    const bool causal = pass.mask.causal, padded = tokens.to.defined();
    const int64_t count = tokens.k.size(2),
                  groups = (count + (causal ? 0 : factor_ - 1)) / factor_,
                  more = std::max<int64_t>(groups * factor_ - count, 0);
    Tensor real = torch::ones({k.size(0), count}, q.options().dtype(torch::kBool));
    if (padded) real = tokens.to.squeeze(1) > 0;
    const auto convolved = [&](const Convolution& by, const Tensor& x) {
      const Tensor clean =
          padded ? x.masked_fill(real.logical_not().unsqueeze(1).unsqueeze(3), 0) : x;
      return by(more > 0 ? torch::constant_pad_nd(clean, {0, 0, 0, more})
                         : clean.slice(2, 0, groups * factor_));
    };
    Source source{.k = convolved(keys_, tokens.k), .v = convolved(values_, tokens.v)};
    Tensor valid = torch::constant_pad_nd(real, {0, groups * factor_ - count})
                       .view({k.size(0), groups, factor_})
                       .any(2);
    if (Record* const state = pass.state) {
      keep_keys(*state, torch::arange(groups * factor_, count));
      Record& past = state->part("groups");
      source.k = past.grow("k", source.k, 2);
      source.v = past.grow("v", source.v, 2);
      valid = past.grow("tokens", valid, 1);
    }
    if (padded || pass.state) source.to = open_where(valid);
    if (causal)
      source.layout =
          Layout(q.size(2), source.k.size(2),
                 [first = queries.first, this](int64_t query, std::vector<Span>& seen) {
                   seen.push_back({0, (first + query + 1) / factor_});
                 });
    std::vector<Source> sources = {source};
    if (null_ || causal)
      sources.push_back({.k = null_key_.unsqueeze(0).unsqueeze(2),
                         .v = null_value_.unsqueeze(0).unsqueeze(2),
                         .to = open_where(real.any(1, /*keepdim=*/true))});
    return block_attention(queries, sources, options).out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t examples = k.size(0), queries = q.size(2), keys = k.size(2),
                  groups = (keys + factor_ - 1) / factor_, end = groups * factor_;
    const Tensor tokens = pass.keys(queries, keys).tokens;
    const Tensor real = (tokens.defined() ? tokens : torch::ones({examples, keys}))
                            .to(q.options())
                            .view({examples, 1, keys, 1});
    const auto tap = [&](const Tensor& x, int64_t member) {  // of every group
      return torch::constant_pad_nd(x, {0, 0, 0, end - keys})
          .slice(2, member, end, factor_);
    };
    const auto convolved = [&](const Tensor& x, const Convolution& by,
                               const Tensor& null) {
      Tensor sum = by.bias.unsqueeze(1).expand({examples, -1, groups, -1});
      for (int64_t member = 0; member < factor_; ++member)
        sum = sum + tap(x * real, member)
                        .matmul(by.weight.slice(1, member * x.size(3),
                                                (member + 1) * x.size(3)));
      return torch::cat({null.unsqueeze(1).expand({examples, -1, 1, -1}), sum}, 2);
    };
    Tensor members = torch::zeros({examples, 1, groups, 1}, q.options());
    for (int64_t member = 0; member < factor_; ++member)
      members = members + tap(real, member);
    Tensor seen = members.gt(0).transpose(2, 3).expand({-1, -1, queries, -1});
    if (pass.mask.causal) {
      const Tensor query = torch::arange(keys - queries, keys).unsqueeze(1);
      const Tensor last = (torch::arange(groups) + 1) * factor_ - 1;
      seen = seen & (query >= last).to(q.device());
    }
    Tensor null = real.gt(0).any(2, /*keepdim=*/true).expand({-1, -1, queries, -1});
    if (!null_ && !pass.mask.causal) null = torch::zeros_like(null);
    return masked_attention(q, convolved(k, keys_, null_key_),
                            convolved(v, values_, null_value_),
                            torch::cat({null, seen}, 3), pass);
  }

  int64_t factor_;
  bool null_;
  Convolution keys_, values_;
  Tensor null_key_, null_value_;  // [Hk, w]
};

constexpr Setting kSettings[] = {
    {.name = "factor",
     .standard = "3",
     .help = "how many tokens become one key and value",
     .least = 1},
    {.name = "null_key",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "a learned key and value beside the groups; causal passes always have it"},
};

}  // namespace

constinit const Mechanism catalogue::memory_compressed{
    .name = "memory_compressed",
    .summary = "keys and values made fewer by a strided convolution",
    .paper = "Liu et al. 2018, arXiv:1801.10198",
    .classes = "fixed patterns, memory",
    .time = {"N*N/factor*d", 2},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .decoding = true,
            .dropout = true,
            .grouped = true},
    .state = "keys and values of N/factor groups, and of the tokens after the last",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
          const int64_t factor = settings.integer("factor");
          return PatternAttention::numbers_kept(tokens / factor + tokens % factor,
                                                sizes);
        },
    .full = true,
    .settings = kSettings,
    .make = made_as<Attention, MemoryCompressed>(),
};

}  // namespace longspan
