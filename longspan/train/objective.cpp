#include "longspan/train/objective.h"

#include <algorithm>
#include <cmath>

#include "longspan/base/error.h"
#include "longspan/data/token_windows.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// Of log-probabilities [n, classes] and answers [n].
BatchSums sums_of(const Tensor& log_probabilities, const Tensor& answers) {
  const Tensor right = log_probabilities.gather(1, answers.unsqueeze(1));
  return {.loss = -total(right),
          .right = (log_probabilities.argmax(1) == answers).sum()};
}

// The logarithm of the mean of what `log_probabilities_of` a pass says, over passes
// like `like` that draw by their number.
template <class Work>
Tensor log_of_mean(const Pass& like, int64_t passes, Work log_probabilities_of) {
  Tensor sum;
  Draw draw = like.draw;
  const Key key = draw.key();
  for (int64_t i = 0; i < passes; ++i) {
    Pass pass = like;
    pass.sampling = true;
    pass.draw = Draw(key.bits, static_cast<uint64_t>(i));
    const Tensor one = log_probabilities_of(pass);
    sum = sum.defined() ? torch::logaddexp(sum, one) : one;
  }
  return sum - std::log(static_cast<double>(passes));
}

// What layers refuse is told before anything is written: two tokens, or a document of
// one token each.
void try_out(LanguageModel& model, bool apart) {
  const torch::NoGradGuard without_gradients;
  const Tensor ids =
      torch::arange(std::min<int64_t>(2, model.longest()),
                    model.parameters().front().options().dtype(torch::kLong))
          .unsqueeze(0);
  Pass pass;
  if (apart) pass.mask.segment = ids;
  try {
    model.forward(ids, torch::ones_like(ids, torch::kBool), pass);
  } catch (const Error& error) {
    fail(apart ? "task.documents: apart: " : "model.attention: ", error.what());
  }
}

}  // namespace

BatchSums Classification::evaluate(const Batch& batch, Pass& pass) {
  const Tensor logits = model_.forward(batch.ids, batch.padding_mask(), pass);
  return sums_of(torch::log_softmax(logits, 1), batch.labels);
}

BatchSums Classification::evaluate_mean(const Batch& batch, const Pass& like,
                                        int64_t passes) {
  return sums_of(
      log_of_mean(like, passes,
                  [&](Pass& pass) {
                    return torch::log_softmax(
                        model_.forward(batch.ids, batch.padding_mask(), pass), 1);
                  }),
      batch.labels);
}

LanguageModelling::LanguageModelling(const Task& task, LanguageModel& model)
    : task_(task), model_(model) {
  bool apart = false;
  for (const auto& [split, dataset] : task.texts) {
    const auto* const text = dynamic_cast<const TextDataset*>(dataset.get());
    if (!text) continue;
    apart = apart || text->apart();
    if (!is_of_examples(model.carry())) continue;
    argument([&] {
      require(!text->overlaps(),
              "task.context must be 0: the model carries what it needs of a window on ",
              "to the next, and would meet tokens twice");
      require(!text->apart(),
              "task.documents must be joined: the model carries something of a window ",
              "on to the next, where documents are not told apart");
    });
  }
  argument([&] { try_out(model, apart); });
}

BatchSums LanguageModelling::evaluate(const Batch& batch, Pass& pass) {
  pass.mask.segment = batch.segments;
  Tensor x = model_.forward(batch.ids, batch.padding_mask(), pass, batch.kinds);
  Tensor targets = batch.targets;
  if (batch.answers > 0 && 2 * batch.answers < targets.numel()) {
    // Of a large vocabulary only what is asked; their number is known without waiting
    // for the device.
    const Tensor asked = std::get<1>((targets >= 0)
                                         .flatten()
                                         .to(torch::kByte)
                                         .sort(
                                             /*stable=*/true, 0, /*descending=*/true))
                             .slice(0, 0, batch.answers);
    x = x.flatten(0, 1).index_select(0, asked).unsqueeze(0);
    targets = targets.flatten().index_select(0, asked).unsqueeze(0);
  }
  const auto judged = model_.judge(x, targets);
  return {.loss = total(judged.loss), .right = judged.right.sum()};
}

BatchSums LanguageModelling::evaluate_mean(const Batch& batch, const Pass& like,
                                           int64_t passes) {
  const Tensor asked = (batch.targets >= 0).flatten().nonzero().squeeze(1);
  const Tensor answers = batch.targets.flatten().index_select(0, asked);
  return sums_of(log_of_mean(like, passes,
                             [&](Pass& pass) {
                               pass.mask.segment = batch.segments;
                               const Tensor x = model_.forward(
                                   batch.ids, batch.padding_mask(), pass, batch.kinds);
                               return model_.log_probabilities(
                                   x.flatten(0, 1).index_select(0, asked));
                             }),
                 answers);
}

Measures LanguageModelling::measures(const Dataset& examples,
                                     const Score& score) const {
  Measures measures;
  const auto* const text = dynamic_cast<const TextDataset*>(&examples);
  if (text && text->unknown_share() > 0)
    measures.emplace_back("unknown_share", text->unknown_share());
  measures.emplace_back("perplexity", std::exp(score.loss));
  if (!text) return measures;
  const double nats = score.loss * static_cast<double>(score.answers);
  const double of_words = std::exp(nats / static_cast<double>(text->words()));
  if (text->words() > 0 && std::isfinite(of_words))
    measures.emplace_back("word_perplexity", of_words);
  if (text->bytes() > 0)
    measures.emplace_back("bits_per_byte",
                          nats / (std::log(2.0) * static_cast<double>(text->bytes())));
  return measures;
}

}  // namespace longspan
