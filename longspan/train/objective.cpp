#include "longspan/train/objective.h"

#include <cmath>

#include "longspan/base/error.h"
#include "longspan/data/token_windows.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// The pass number `number` of several that are averaged.
Pass sampling_pass(int64_t number) {
  Pass pass;
  pass.sampling = true;
  pass.draw = Draw(0, static_cast<uint64_t>(number));
  return pass;
}

// Of log-probabilities [n, classes] and answers [n].
BatchSums sums_of(const Tensor& log_probabilities, const Tensor& answers) {
  const Tensor right = log_probabilities.gather(1, answers.unsqueeze(1));
  return {.loss = -total(right),
          .right = (log_probabilities.argmax(1) == answers).sum()};
}

// The logarithm of the mean of what `log_probabilities_of` a pass says.
template <class Work>
Tensor log_of_mean(int64_t passes, Work log_probabilities_of) {
  Tensor sum;
  for (int64_t i = 0; i < passes; ++i) {
    Pass pass = sampling_pass(i);
    const Tensor one = log_probabilities_of(pass);
    sum = sum.defined() ? torch::logaddexp(sum, one) : one;
  }
  return sum - std::log(static_cast<double>(passes));
}

}  // namespace

BatchSums Classification::evaluate(const Batch& batch, Pass& pass) {
  const Tensor logits = model_.forward(batch.ids, batch.tokens, pass);
  return sums_of(torch::log_softmax(logits, 1), batch.labels);
}

BatchSums Classification::evaluate_mean(const Batch& batch, int64_t passes) {
  return sums_of(log_of_mean(passes,
                             [&](Pass& pass) {
                               return torch::log_softmax(
                                   model_.forward(batch.ids, batch.tokens, pass), 1);
                             }),
                 batch.labels);
}

LanguageModelling::LanguageModelling(const Task& task, LanguageModel& model)
    : task_(task), model_(model) {
  if (model.carry() != Carry::per_example) return;
  for (const auto& [split, dataset] : task.texts) {
    const auto* const text = dynamic_cast<const TextDataset*>(dataset.get());
    if (!text) continue;
    argument([&] {
      require(!text->overlaps(),
              "task.context must be 0: the model carries what it needs of a window on ",
              "to the next, and would meet tokens twice");
      require(!text->apart(),
              "task.documents must be joined: the model carries something of a window ",
              "on to the next, where documents are not told apart");
    });
  }
}

BatchSums LanguageModelling::evaluate(const Batch& batch, Pass& pass) {
  pass.mask.segment = batch.segments;
  const Tensor x = model_.forward(batch.ids, batch.tokens, pass, batch.kinds);
  const auto judged = model_.judge(x, batch.targets);
  return {.loss = total(judged.loss), .right = judged.right.sum()};
}

BatchSums LanguageModelling::evaluate_mean(const Batch& batch, int64_t passes) {
  const Tensor asked = (batch.targets >= 0).flatten().nonzero().squeeze(1);
  const Tensor answers = batch.targets.flatten().index_select(0, asked);
  return sums_of(log_of_mean(passes,
                             [&](Pass& pass) {
                               pass.mask.segment = batch.segments;
                               const Tensor x = model_.forward(batch.ids, batch.tokens,
                                                               pass, batch.kinds);
                               return model_.log_probabilities(
                                   x.flatten(0, 1).index_select(0, asked));
                             }),
                 answers);
}

Measures LanguageModelling::measures(const Dataset& examples,
                                     const Score& score) const {
  Measures measures = {{"perplexity", std::exp(score.loss)}};
  const auto* const text = dynamic_cast<const TextDataset*>(&examples);
  if (!text || task_.goal != Goal::next_token) return measures;
  const double nats = score.loss * static_cast<double>(score.answers);
  if (text->words() > 0)
    measures.emplace_back("word_perplexity",
                          std::exp(nats / static_cast<double>(text->words())));
  if (text->bytes() > 0)
    measures.emplace_back("bits_per_byte",
                          nats / (std::log(2.0) * static_cast<double>(text->bytes())));
  return measures;
}

}  // namespace longspan
