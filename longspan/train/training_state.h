// Where a training stands.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

// Means over answers: labels, or tokens that are asked for.
struct Score {
  double loss = 0;
  double accuracy = 0;
  int64_t answers = 0;
};

struct Scored {
  int64_t step = 0;
  Score score = {};
};

// Everything about a training but tensors; saved as state.json.
struct TrainingState {
  int64_t step = 0;
  int64_t examples = 0;
  int64_t tokens = 0;
  double flops = 0;
  double seconds = 0;
  double aside = 0;  // of these, in evaluations and checkpoints
  int64_t peak_bytes = 0;
  double first_loss = 0;
  int64_t evaluated = 0;     // the step of the last evaluation
  uint32_t data = 0;         // fingerprint of the examples
  int64_t without_gain = 0;  // evaluations since the best
  std::optional<Scored> best = {};
};

// As JSON.
std::string text_of(const TrainingState& state);

// Nothing if `text` is not the state of a training.
std::optional<TrainingState> state_from(const std::string& text);

}  // namespace longspan
