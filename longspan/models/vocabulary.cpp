#include "longspan/models/vocabulary.h"

#include <cmath>

#include "longspan/attention/linear_map.h"
#include "longspan/kernels/matmul.h"

namespace longspan {

using torch::Tensor;

Vocabulary::Vocabulary(int64_t ids, int64_t width, const VocabularyOptions& options)
    : options_(options) {
  embedding_ = register_parameter(
      "embedding", options.predicts ? torch::randn({ids, width}) /
                                          std::sqrt(static_cast<double>(width))
                                    : torch::randn({ids, width}));
  if (options.predicts) bias_ = register_parameter("bias", torch::zeros(ids));
}

Tensor Vocabulary::embedded(const Tensor& ids) const {
  // Gradients of many tokens add up unrounded.
  const Tensor x = torch::embedding(at_least_float(embedding_), ids);
  if (!options_.predicts) return x;
  return x * std::sqrt(static_cast<double>(embedding_.size(1)));
}

std::pair<Tensor, Tensor> Vocabulary::judge(const Tensor& x,
                                            const Tensor& targets) const {
  const Tensor asked = targets >= 0;
  const Tensor log_p = log_probabilities(x);
  const Tensor at = targets.clamp_min(0);
  const Tensor loss = -log_p.gather(1, at.unsqueeze(1)).squeeze(1);
  return {loss * asked, (log_p.argmax(1) == at).logical_and(asked)};
}

Tensor Vocabulary::log_probabilities(const Tensor& x) const {
  return torch::log_softmax(
      longspan::linear(at_least_float(x), at_least_float(embedding_),
                       at_least_float(bias_)),
      -1);
}

}  // namespace longspan
