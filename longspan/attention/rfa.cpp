// Softmax attention between unit vectors by random features, sines and cosines along
// random directions; causal, optionally with a gate that forgets. Peng et al. 2021,
// arXiv:2103.02143.
//
// With the gate g of a token, S_t = g_t S_{t-1} + (1 - g_t) f(k_t) v_t^T: the sums are
// all there is to be remembered.

#include <cmath>
#include <utility>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/feature_attention.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/head_projections.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/random_features.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kNormRest = 1e-3;  // beside which a norm counts

class Rfa final : public Mixer {
 public:
  Rfa(const Settings& settings, const Sizes& sizes)
      : project_(*this, "", sizes, /*has_bias=*/true),
        tau_(settings.number("tau")),
        options_{.normaliser = Normaliser::at_least,
                 .epsilon = settings.number("least_sum")} {
    const int64_t pool = settings.integer("pool"),
                  features = settings.integer("features");
    require(tau_ > 0, "tau must be more than 0, got ", tau_);
    require(options_.epsilon > 0, "least_sum must be more than 0, got ",
            options_.epsilon);
    require(pool >= sizes.key_heads, "pool must have a matrix for each of the ",
            sizes.key_heads, " heads of keys, got ", pool);
    {
      const torch::NoGradGuard changing;
      for (const char* const name : {"q", "k", "v", "out"})
        named_parameters()[name + std::string("_weight")].mul_(std::sqrt(0.5));
    }
    sigma_ = register_parameter("sigma",
                                torch::ones({sizes.key_heads, 1, sizes.head_width}));
    pool_ = register_buffer(
        "pool", settings.flag("orthogonal")
                    ? orthogonal_directions(key_of_new_module(), pool, features,
                                            sizes.head_width, /*normal_lengths=*/true)
                          .to(torch::kFloat)
                    : torch::randn({pool, features, sizes.head_width}));
    if (!settings.flag("gate")) return;
    gate_ = make_linear(*this, "gate", sizes.heads, sizes.embedding, /*has_bias=*/true);
    const torch::NoGradGuard changing;
    gate_.bias.copy_(torch::linspace(2, 4, sizes.heads));  // slow to forget
  }

  Sight sight(int64_t tokens, bool causal) override {
    return sight_of_sums(tokens, causal);
  }

 private:
  // [Hk, features, d]: in evaluation the first of the pool, in training some of it.
  Tensor directions(Pass& pass) const {
    const int64_t heads = sigma_.size(0);
    Tensor chosen = pool_.slice(0, 0, heads);
    if (pass.training)
      chosen = pool_.index_select(
          0, random_words(pass.draw.key(), {pool_.size(0)}, pool_.device())
                 .argsort()
                 .slice(0, 0, heads));
    const Tensor wide = at_least_float(chosen);
    return wide * spread(at_least_float(sigma_), wide.sizes()) / tau_;
  }

  // [B, H|Hk, n, 2*features], at least float
  static Tensor features(const Tensor& x, const Tensor& directions) {
    constexpr double kLeastSquare = 1e-24;  // a slope at 0
    const Tensor wide = at_least_float(x);
    auto column = x.sizes().vec();
    column[3] = 1;
    const Tensor norm =
        longspan::sum_to(wide * wide, column).clamp_min(kLeastSquare).sqrt();
    const Tensor angles =
        longspan::matmul(wide / spread(norm + kNormRest, wide.sizes()),
                         of_query_heads(directions, x.size(1)).transpose(1, 2));
    return torch::cat({angles.sin(), angles.cos()}, 3) /
           std::sqrt(static_cast<double>(directions.size(1)));
  }

  static Tensor defined(const Tensor& x, const Tensor& directions) {
    const Tensor unit = x / (x.norm(2, {3}, /*keepdim=*/true) + kNormRest);
    const Tensor along = of_query_heads(directions.to(x.scalar_type()), x.size(1));
    const Tensor angles = torch::einsum("bhnd,hfd->bhnf", {unit, along});
    return torch::cat({angles.sin(), angles.cos()}, 3) /
           std::sqrt(static_cast<double>(along.size(1)));
  }

  bool is_gated(const Pass& pass) const {
    return gate_.weight.defined() && pass.mask.causal;
  }

  // x, or the tokens of the context; of a context whose sums are known, none.
  static Tensor others(const Tensor& x, const Pass& pass) {
    const bool known =
        pass.crosses() && pass.state && pass.state->get("sums").defined();
    return known ? x.slice(1, 0, 0) : key_tokens(x, pass).x;
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    const Tensor along = directions(pass), keys = others(x, pass);
    LinearInputs inputs{.q = features(project_.q(x), along),
                        .k = features(project_.k(keys), along),
                        .v = project_.v(keys)};
    if (is_gated(pass)) {
      // ln g and ln(1 - g), neither of which a g near 1 or 0 makes inexact.
      const Tensor y = at_least_float(gate_(x)).transpose(1, 2), size = y.abs();
      const Tensor rest = (-size).exp().log1p();
      inputs.log_decay = (y - size) / 2 - rest;
      inputs.weights = ((-y - size) / 2 - rest).exp();
    }
    return project_.out(attend_by_features(std::move(inputs), options_, pass));
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const Tensor along = directions(pass), keys = others(x, pass);
    const Tensor q = project_.q(x), k = project_.k(keys);
    Tensor pairs =
        allowed_pairs(pass, q.size(2), k.size(2), x.device()).to(x.scalar_type());
    if (is_gated(pass)) {
      Tensor gate =
          torch::linear(x, gate_.weight, gate_.bias).sigmoid().transpose(1, 2);
      if (pass.mask.tokens.defined())
        gate = gate.masked_fill(
            pass.mask.tokens.to(x.device()).logical_not().unsqueeze(1), 1);
      const Tensor sums = gate.log().cumsum(2);
      const Tensor kept = (sums.unsqueeze(3) - sums.unsqueeze(2))
                              .masked_fill(pairs == 0, hidden_score(x.scalar_type()));
      pairs = pairs * kept.exp() * (1 - gate).unsqueeze(2);
    }
    return project_.out(define_by_features(defined(q, along), defined(k, along),
                                           project_.v(keys), pairs, options_));
  }

  HeadProjections project_;
  double tau_;
  LinearAttention options_;
  Tensor sigma_;  // [Hk, 1, d]
  Tensor pool_;   // [P, features, d]
  Linear gate_;   // E to H, if there is one
};

constexpr Setting kSettings[] = {
    {.name = "features",
     .standard = "64",
     .help = "random directions of a head; features are two for each",
     .least = 1},
    {.name = "gate",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "causal passes forget by a learned gate, every token as much as it says"},
    {.name = "tau",
     .kind = Kind::number,
     .standard = "1",
     .help = "temperature: directions are divided by it"},
    {.name = "pool",
     .standard = "500",
     .help = "matrices of directions from which every pass of training draws",
     .least = 1},
    {.name = "orthogonal",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "directions that are orthogonal, not only random"},
    {.name = "least_sum",
     .kind = Kind::number,
     .standard = "0.1",
     .help = "a row whose weights sum to less is divided by this"},
};

}  // namespace

constinit const Mechanism catalogue::rfa{
    .name = "rfa",
    .summary =
        "softmax between unit vectors by sines and cosines, with a gate or without",
    .paper = "Peng et al. 2021, arXiv:2103.02143",
    .classes = "kernels",
    .time = {"N*features*(d + dv)", 1},
    .memory = {"N*(features + d)", 1},
    .can = kFeatureAbilities,
    .state = "sums over the keys: H*2*features*(dv + 1)",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t) {
          return sums_kept(sizes, 2 * settings.integer("features"), false);
        },
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .test_settings = "{features: 8, pool: 9, gate: true}",
    .make = made_as<Mixer, Rfa>(),
};

}  // namespace longspan
