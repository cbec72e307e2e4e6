#include "longspan/models/classifier.h"

#include <algorithm>
#include <cmath>

#include <torch/nn/init.h>

#include "longspan/attention/linear_map.h"
#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// Normal numbers within two deviations, of variance 1 / (inputs of a unit): LeCun et
// al. 1998, "Efficient backprop".
Tensor lecun_normal(int64_t out, int64_t in) {
  constexpr double kDeviationWithinTwo = 0.87962566103423978;
  return truncated_normal({out, in}) *
         (1 / (kDeviationWithinTwo * std::sqrt(static_cast<double>(in))));
}

// The mean of the real tokens of each example: [B, N, E] -> [B, E].
Tensor masked_mean(const Tensor& x, const Tensor& tokens) {
  const Tensor kept = x.masked_fill(tokens.logical_not().unsqueeze(2), 0);
  const Tensor sum = longspan::sum_to(kept, {x.size(0), 1, x.size(2)}).squeeze(1);
  return sum / tokens.sum(1, /*keepdim=*/true).clamp_min(1).to(x.scalar_type());
}

}  // namespace

Classifier::Classifier(const TransformerOptions& options, int64_t ids, int64_t longest,
                       int64_t classes, Reads reads)
    : mean_(options.pooling == "mean"),
      pairs_(reads == Reads::pairs),
      interaction_(options.head == "interaction") {
  require(classes >= 2, "a classifier needs two classes or more, got ", classes);
  const bool concatenation = options.head == "concatenation";
  require(pairs_ == (interaction_ || concatenation), "model.head must be ",
          pairs_ ? "concatenation or interaction for pairs of texts"
                 : "mlp or linear for texts that do not come in pairs",
          ", got ", options.head);
  const bool by_attention = options.pooling == "pma";
  encoder_ = register_module(
      "encoder", std::make_shared<Transformer>(
                     options, Transformer::Inputs{.ids = ids,
                                                  .longest = longest,
                                                  .cls = !mean_ && !by_attention}));
  int64_t width = encoder_->sizes().embedding;
  if (by_attention) {
    pool_ = register_module("pool", std::make_shared<MultiheadBlock>(
                                        encoder_->sizes(), MultiheadBlock::Options()));
    seed_ = register_parameter("seed", torch::empty({1, 1, width}));
    torch::nn::init::xavier_uniform_(seed_[0]);
  }
  if (pairs_) width *= interaction_ ? 4 : 2;
  if (options.head != "linear") {
    const int64_t inner = encoder_->sizes().inner;
    hidden_weight_ = register_parameter("hidden_weight", lecun_normal(inner, width));
    hidden_bias_ = register_parameter("hidden_bias", torch::zeros(inner));
    width = inner;
  }
  if (concatenation) {
    const int64_t inner = std::max<int64_t>(1, width / 2);
    second_weight_ = register_parameter("second_weight", lecun_normal(inner, width));
    second_bias_ = register_parameter("second_bias", torch::zeros(inner));
    width = inner;
  }
  out_weight_ = register_parameter("out_weight", lecun_normal(classes, width));
  out_bias_ = register_parameter("out_bias", torch::zeros(classes));
}

Tensor Classifier::pooled(const Stream& tokens) const {
  const auto& [x, real, positions] = tokens;
  if (mean_) return masked_mean(x, real);
  if (pool_) return pool_->forward(seed_, x, real).squeeze(1);
  return x.select(1, 0);
}

Tensor Classifier::joined(const Tensor& x) const {
  require(x.size(0) % 2 == 0,
          "a classifier of pairs needs an even number of texts, got ", x.size(0));
  const auto both = x.chunk(2, 0);
  const Tensor &a = both[0], &b = both[1];
  return torch::cat(interaction_ ? std::vector<Tensor>{a, b, a * b, a - b}
                                 : std::vector<Tensor>{a, b},
                    1);
}

Tensor Classifier::forward(const Tensor& ids, const Tensor& mask, Pass& pass) {
  Tensor x = pooled(encoder_->forward(ids, mask, pass));
  if (pairs_) x = joined(x);
  if (hidden_weight_.defined())
    x = activate(longspan::linear(x, hidden_weight_), hidden_bias_, Activation::relu);
  if (second_weight_.defined())
    x = activate(longspan::linear(x, second_weight_), second_bias_, Activation::relu);
  return longspan::linear(at_least_float(x), at_least_float(out_weight_),
                          at_least_float(out_bias_));
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace longspan
