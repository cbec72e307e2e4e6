#include "longspan/models/language_model.h"

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {

using torch::Tensor;

LanguageModel::LanguageModel(const TransformerOptions& options, int64_t ids,
                             int64_t longest, Sees sees)
    : ids_(ids), longest_(longest), sees_(sees) {
  transformer_ = register_module(
      "transformer", std::make_shared<Transformer>(
                         options, Transformer::Inputs{.ids = ids,
                                                      .longest = longest,
                                                      .causal = sees == Sees::past,
                                                      .predicts = true}));
}

Tensor LanguageModel::forward(const Tensor& ids, const Tensor& mask, Pass& pass,
                              const Tensor& kinds) {
  return transformer_->forward(ids, mask, pass, kinds).x;
}

LanguageModel::Judged LanguageModel::judge(const Tensor& x,
                                           const Tensor& targets) const {
  require(targets.dim() == 2 && x.dim() == 3 && x.size(0) == targets.size(0) &&
              x.size(1) == targets.size(1),
          "a language model judges targets [B, N] by vectors [B, N, E], got ",
          shape(targets), " and ", shape(x));
  const auto [loss, right] =
      transformer_->vocabulary().judge(x.flatten(0, 1), targets.flatten());
  return {.loss = loss.view_as(targets), .right = right.view_as(targets)};
}

Tensor LanguageModel::log_probabilities(const Tensor& x) const {
  return transformer_->vocabulary().log_probabilities(x);
}

}  // namespace longspan
