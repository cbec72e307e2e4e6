#include "longspan/train/training_state.h"

#include <nlohmann/json.hpp>

namespace longspan {

using nlohmann::json;

std::string text_of(const TrainingState& s) {
  json saved = {{"step", s.step},
                {"examples", s.examples},
                {"tokens", s.tokens},
                {"flops", s.flops},
                {"seconds", s.seconds},
                {"seconds_aside", s.aside},
                {"peak_bytes", s.peak_bytes},
                {"first_loss", s.first_loss},
                {"evaluated", s.evaluated},
                {"data", s.data},
                {"without_gain", s.without_gain},
                {"best", nullptr}};
  if (s.best)
    saved["best"] = {{"step", s.best->step},
                     {"loss", s.best->score.loss},
                     {"accuracy", s.best->score.accuracy},
                     {"answers", s.best->score.answers}};
  return saved.dump(2) + "\n";
}

std::optional<TrainingState> state_from(const std::string& text) try {
  const json saved = json::parse(text);
  TrainingState s{.step = saved.at("step"),
                  .examples = saved.at("examples"),
                  .tokens = saved.at("tokens"),
                  .flops = saved.at("flops"),
                  .seconds = saved.at("seconds"),
                  .aside = saved.value("seconds_aside", 0.0),
                  .peak_bytes = saved.value("peak_bytes", int64_t{0}),
                  .first_loss = saved.at("first_loss"),
                  .evaluated = saved.at("evaluated"),
                  .data = saved.at("data"),
                  .without_gain = saved.at("without_gain")};
  if (const json& best = saved.at("best"); !best.is_null())
    s.best = Scored{.step = best.at("step"),
                    .score = {.loss = best.at("loss"),
                              .accuracy = best.at("accuracy"),
                              .answers = best.at("answers")}};
  return s;
} catch (const json::exception&) {
  return std::nullopt;
}

}  // namespace longspan
