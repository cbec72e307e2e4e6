// Attention whose weights are products of positive features of a query and a key, so
// that sums over the keys serve all queries. Katharopoulos et al. 2020,
// arXiv:2006.16236.

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/feature_attention.h"
#include "longspan/attention/linear_map.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// elu(x) + 1, for which what it gives is enough to know its slope.
class EluAndOne : public torch::autograd::Function<EluAndOne> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    // Not by elu(), which has no digits left where it is near -1.
    const Tensor feature = x.clamp_max(0).exp_().add_(x.relu());
    context->save_for_backward({feature});
    return feature;
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    return {slopes[0] * context->get_saved_variables()[0].clamp_max(1)};
  }
};

enum class Map { elu, relu, squared_relu, exp };

Map map_of(const Settings& settings) {
  const std::string& word = settings.word("map");
  return word == "elu"    ? Map::elu
         : word == "relu" ? Map::relu
         : word == "exp"  ? Map::exp
                          : Map::squared_relu;
}

class LinearTransformer final : public Attention {
 public:
  LinearTransformer(const Settings& settings, const Sizes&)
      : map_(map_of(settings)),
        options_{.log_features = map_ == Map::exp,
                 .normaliser = Normaliser::plus,
                 .epsilon = settings.number("epsilon")} {
    if (options_.epsilon == 0) options_.normaliser = Normaliser::if_positive;
  }

  Sight sight(int64_t tokens, bool causal) override {
    return sight_of_sums(tokens, causal);
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    return attend_by_features({.q = features(q), .k = features(k), .v = v}, options_,
                              pass);
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    return define_by_features(defined(q), defined(k), v,
                              allowed_pairs(pass, q.size(2), k.size(2), q.device()),
                              options_);
  }

  // Or their logs.
  Tensor features(const Tensor& x) const {
    // Kernels of CUDA have a quicker way for features of low precision.
    const Tensor wide = x.is_cpu() ? at_least_float(x) : x;
    switch (map_) {
      case Map::elu: return EluAndOne::apply(wide);
      case Map::relu: return wide.relu();
      case Map::squared_relu: return wide.relu().square();
      case Map::exp: break;
    }
    return wide;
  }

  Tensor defined(const Tensor& x) const {
    switch (map_) {
      case Map::elu: return torch::elu(x) + 1;
      case Map::relu: return x.clamp_min(0);
      case Map::squared_relu: return x.clamp_min(0).pow(2);
      case Map::exp: break;
    }
    return x.exp();
  }

  Map map_;
  LinearAttention options_;
};

constexpr Setting kSettings[] = {
    {.name = "map",
     .kind = Kind::word,
     .standard = "elu",
     .help = "from a number of a query or key to its feature; elu: elu(x) + 1",
     .choices = "elu|relu|squared_relu|exp"},
    {.name = "epsilon",
     .kind = Kind::number,
     .standard = "1e-6",
     .help = "added to the sum of the weights that a row is divided by",
     .least = 0},
};

}  // namespace

constinit const Mechanism catalogue::linear{
    .name = "linear",
    .summary = "weights that are products of features, by sums over the keys",
    .paper = "Katharopoulos et al. 2020, arXiv:2006.16236",
    .classes = "kernels",
    .time = {"N*d*dv", 1},
    .memory = {"N*d", 1},
    .can = kFeatureAbilities,
    .state = "sums over the keys: H*d*(dv + 1)",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t) {
          return sums_kept(sizes, sizes.head_width, map_of(settings) == Map::exp);
        },
    .full = true,
    .settings = kSettings,
    .make = made_as<Attention, LinearTransformer>(),
};

}  // namespace longspan
