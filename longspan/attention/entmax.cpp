// Attention with alpha-entmax in place of softmax: keys with low scores have no weight
// at all, and every head learns how many. Correia et al. 2019, arXiv:1909.00015.

#include "longspan/kernels/entmax.h"

#include <cmath>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kLeastAlpha = 1.01, kLargestAlpha = 2;

class Entmax final : public Attention {
 public:
  Entmax(const Settings& settings, const Sizes& sizes)
      : fixed_(settings.number("alpha")), heads_(sizes.heads) {
    require(fixed_ == 0 || (fixed_ >= kLeastAlpha && fixed_ <= kLargestAlpha),
            "alpha must be from ", kLeastAlpha, " to ", kLargestAlpha,
            ", or 0 where heads learn it, got ", fixed_);
    if (fixed_ == 0)
      pre_alpha_ = register_parameter("pre_alpha", torch::randn({sizes.heads}));
  }

 private:
  // [H], for queries q.
  Tensor alpha(const Tensor& q) const {
    const bool wide = q.scalar_type() == torch::kDouble;
    if (fixed_ != 0)
      return torch::full({heads_}, fixed_,
                         q.options().dtype(wide ? torch::kDouble : torch::kFloat));
    return (1 + at_least_float(pre_alpha_).sigmoid()).clamp(kLeastAlpha, kLargestAlpha);
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    prepared.source.layout =
        Layout(prepared.query_count(), prepared.key_count(), prepared.order);
    return entmax_attention(prepared.queries, prepared.source, alpha(q),
                            prepared.options);
  }

  // For the tokens of x, [N] or [B, 1, N]; counted from `first` where none are given.
  static Tensor places(const Tensor& positions, int64_t first, const Tensor& x) {
    if (!positions.defined())
      return torch::arange(first, first + x.size(2), x.options().dtype(torch::kLong));
    return positions.dim() == 2 ? positions.unsqueeze(1) : positions;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t group = q.size(1) / k.size(1);
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    const Tensor seen = allowed_pairs(pass, q.size(2), k.size(2), q.device());
    Tensor scores = scale * q.matmul(k.repeat_interleave(group, 1).transpose(2, 3));
    const int64_t shift = k.size(2) - q.size(2);
    if (pass.bias.defined())
      scores =
          scores + bias_scores(pass.bias, q, scale, places(pass.positions, shift, q),
                               places(pass.keys(q.size(2), k.size(2)).positions, 0, k));
    const Tensor weights = entmax_weights(
        at_least_float(scores).masked_fill(seen.logical_not(), -INFINITY),
        alpha(q).view({1, -1, 1, 1}));
    return weights.to(v.scalar_type()).matmul(v.repeat_interleave(group, 1));
  }

  double fixed_;  // 0: learned
  int64_t heads_;
  Tensor pre_alpha_;  // [H]
};

constexpr Setting kSettings[] = {
    {.name = "alpha",
     .kind = Kind::number,
     .standard = "0",
     .help = "from 1.01, nearly softmax, to 2, sparsemax, the sparsest; 0: every head "
             "learns its own",
     .least = 0},
};

}  // namespace

constinit const Mechanism catalogue::entmax{
    .name = "entmax",
    .summary = "weights that are exactly 0 for keys with low scores",
    .paper = "Correia et al. 2019, arXiv:1909.00015",
    .classes = "sparsity",
    .time = {"N*M*d", 2},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .causal_cross = true,
            .decoding = true,
            .positions = true,
            .bias = true,
            .segments = true,
            .dropout = true,
            .grouped = true},
    .state = "keys and values of all tokens: N*Hk*(d + dv)",
    .state_size =
        [](const Settings&, const Sizes& sizes, int64_t tokens) {
          return tokens * sizes.key_heads * (sizes.head_width + sizes.value_width);
        },
    .full = true,
    .zero_weights = true,
    .settings = kSettings,
    .make = made_as<Attention, Entmax>(),
};

}  // namespace longspan
