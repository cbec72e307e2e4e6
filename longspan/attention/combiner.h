// Full attention out of a pattern: a query sees some keys each by itself, and all
// others in summaries of spans of them, in one softmax. Ren et al. 2021,
// arXiv:2107.05768.
//
// A summary stands for its span by a pooled key; its value is the attention over the
// span of a pooled query. So every key that may be seen has a weight, in exactly one
// way. Dropout is of the weights of keys and summaries, not inside a span.

#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/kernels/pool.h"

namespace longspan {

// The summaries of G spans.
struct Summaries {
  torch::Tensor k = {};  // [B, H, G, d]
  torch::Tensor v = {};  // [B, H, G, dv]
  torch::Tensor valid =
      {};  // [B, G] bool: with a real key; undefined: all that are seen

  // As keys, seen as `layout` shows them.
  Source source(const Layout& layout) const;
  // These after those of `state` before, which they join.
  Summaries joined(Record& state) const;
};

inline constexpr Setting kSummary = {
    .name = "summary",
    .kind = Kind::word,
    .standard = "max",
    .help =
        "how queries and keys of a span become one; deepsets: after a learned layer",
    .choices = "max|mean|deepsets_max|deepsets_mean"};

// Queries and keys of a span become one.
class SpanPooling {
 public:
  // By the setting `summary`; its weights are parameters of `owner`.
  SpanPooling(torch::nn::Module& owner, const Settings& settings, const Sizes& sizes);

  Pooling how() const { return how_; }
  // If so, the summary of one token is not that token.
  bool has_layers() const { return query_weight_.defined(); }
  // What is pooled of queries and of keys.
  torch::Tensor of_queries(const torch::Tensor& q) const;
  torch::Tensor of_keys(const torch::Tensor& k) const;

  // x [B, H, N, d], of_queries() or of_keys(), over spans; `real` [B, N] bool,
  // undefined: all.
  torch::Tensor pooled(const torch::Tensor& x, const torch::Tensor& real,
                       const std::vector<Span>& spans) const;
  // Of queries and keys pooled already, [B, H | Hk, G, d]; `tokens` are the keys that
  // each span has, by its layout. Which are valid is told where some tokens are not.
  Summaries summaries(const torch::Tensor& q, const torch::Tensor& k,
                      const Source& tokens) const;

 private:
  Pooling how_;
  torch::Tensor query_weight_, key_weight_;  // [d, d], of deepsets
};

// What each query sees, for definitions.
struct CombinerPlan {
  torch::Tensor direct;   // [N, N] bool
  torch::Tensor members;  // [G, N] bool: the keys of every span
  torch::Tensor spans;    // [N, G] bool: the spans that a query sees
};

// The attention of a plan, by its definition; `real` [B|1, N] bool, undefined: all.
torch::Tensor combined(const CombinerPlan& plan, const SpanPooling& pooling,
                       const torch::Tensor& q, const torch::Tensor& k,
                       const torch::Tensor& v, const torch::Tensor& real);

class Combiner : public Attention {
 public:
  Combiner(const Settings& settings, const Sizes& sizes)
      : pooling_(*this, settings, sizes) {}

  Sight sight(int64_t tokens, bool causal) override;

 protected:
  using Plan = CombinerPlan;

  const SpanPooling& pooling() const { return pooling_; }

 private:
  // Of several the mean is taken.
  virtual std::vector<Plan> plans(int64_t tokens, bool causal) const = 0;
  torch::Tensor define(const torch::Tensor& q, const torch::Tensor& k,
                       const torch::Tensor& v, Pass& pass) override;

  SpanPooling pooling_;
};

// What all variants can.
inline constexpr Abilities kCombinerAbilities{.causal = Causal::optional,
                                              .padding = true,
                                              .decoding = true,
                                              .dropout = true,
                                              .grouped = true};

}  // namespace longspan
