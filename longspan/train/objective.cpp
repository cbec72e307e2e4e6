#include "longspan/train/objective.h"

#include "longspan/kernels/total.h"

namespace longspan {

using torch::Tensor;

BatchSums Classification::evaluate(const Batch& batch, Pass& pass) {
  const Tensor logits = model_.forward(batch.ids, batch.tokens, pass);
  const Tensor log_probabilities = torch::log_softmax(logits, 1);
  const Tensor right = log_probabilities.gather(1, batch.labels.unsqueeze(1));
  return {.loss = -total(right), .right = (logits.argmax(1) == batch.labels).sum()};
}

}  // namespace longspan
