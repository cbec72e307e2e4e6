// Softmax attention with its weights replaced by products of positive random features,
// which are the weights in the mean. Choromanski et al. 2020, arXiv:2009.14794.
//
// Features are kept as logs, with a maximum that runs along the tokens: nothing is
// added to keep them from being 0, and no later key changes an earlier output.

#include <cmath>
#include <optional>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/feature_attention.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/random_features.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kLeastFeature = 1e-3;  // of the relu kernels

constexpr char kBare[] = "bare_relu";

bool has_logs(const Settings& settings) {
  const std::string& kernel = settings.word("kernel");
  return kernel != "relu" && kernel != kBare;
}

class Performer final : public Attention {
 public:
  Performer(const Settings& settings, const Sizes& sizes)
      : options_{.log_features = has_logs(settings)} {
    if (settings.word("kernel") != kBare)
      random_.emplace(*this, settings, sizes, settings.word("kernel") == "cosh");
  }

  Sight sight(int64_t tokens, bool causal) override {
    return sight_of_sums(tokens, causal);
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    if (random_) random_->begin(pass);
    const auto features = [this](const Tensor& x) {
      return options_.log_features ? random_->logs(x) : rectified(at_least_float(x));
    };
    return attend_by_features({.q = features(q), .k = features(k), .v = v}, options_,
                              pass);
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    if (random_) random_->begin(pass);
    const auto features = [this](const Tensor& x) {
      if (options_.log_features) return random_->defined(x);
      if (!random_) return x.clamp_min(0) + kLeastFeature;
      const Tensor scaled = x / std::pow(static_cast<double>(x.size(3)), 0.25);
      return scaled.matmul(random_->directions(x).transpose(1, 2)).clamp_min(0) +
             kLeastFeature;
    };
    return define_by_features(features(q), features(k), v,
                              allowed_pairs(pass, q.size(2), k.size(2), q.device()),
                              options_);
  }

  Tensor rectified(const Tensor& x) const {
    if (!random_) return x.relu() + kLeastFeature;
    const Tensor along =
        random_->directions(x) / std::pow(static_cast<double>(x.size(3)), 0.25);
    return longspan::matmul(x, along.transpose(1, 2)).relu() + kLeastFeature;
  }

  std::optional<RandomFeatures> random_;
  LinearAttention options_;
};

constexpr Setting kSettings[] = {
    {.name = "kernel",
     .kind = Kind::word,
     .standard = "softmax",
     .help = "what the features stand for; cosh: softmax, every direction with its "
             "opposite; bare_relu: no directions, what is positive of a query or key",
     .choices = "softmax|cosh|relu|bare_relu"},
    kRandomFeatureSettings[0],
    kRandomFeatureSettings[1],
    kRandomFeatureSettings[2],
};

// Of the released code, whose features are no random ones.
constexpr Preset kPresets[] = {{"lra", "{kernel: bare_relu}"}};

}  // namespace

constinit const Mechanism catalogue::performer{
    .name = "performer",
    .summary = "softmax attention by positive orthogonal random features",
    .paper = "Choromanski et al. 2020, arXiv:2009.14794",
    .classes = "kernels",
    .time = {"N*features*(d + dv)", 1},
    .memory = {"N*(features + d)", 1},
    .can = kFeatureAbilities,
    .state = "sums over the keys: H*features*(dv + 1), and their scale",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t) {
          const bool bare = settings.word("kernel") == kBare;
          return sums_kept(sizes,
                           bare ? sizes.head_width : settings.integer("features"),
                           has_logs(settings));
        },
    .full = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{features: 12, redraw: 2}",
    .make = made_as<Attention, Performer>(),
};

}  // namespace longspan
