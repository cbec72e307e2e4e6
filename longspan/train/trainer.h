// Trains a model on examples, so that it can be stopped at any moment, also by force,
// and goes on as if it had not been.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "longspan/train/objective.h"
#include "longspan/train/options.h"
#include "longspan/train/training_state.h"

namespace longspan {

struct ScoreOptions {
  int64_t batch = 16;  // examples at once
  torch::Device device = torch::kCPU;
  std::function<bool()> stop = {};
  int64_t pad_to = 1;   // batches are padded to a multiple of so many tokens
  int64_t samples = 0;  // not 0: the mean probabilities of so many passes that sample
  // What the model carries, if it is of the model.
  const Record* carry = nullptr;
};

// Refuses to average passes that sample, of a model that does not; 0: asks for none.
void check_samples(const Objective& objective, int64_t samples);

// The mean loss and accuracy over all answers, in evaluation mode; nothing if `stop`
// said so in between.
std::optional<Score> score(Objective& objective, const Dataset& examples,
                           const ScoreOptions& options);

struct TrainResult {
  int64_t step = 0;
  int64_t examples = 0;
  int64_t tokens = 0;
  double seconds = 0;      // of training and evaluation, resumed parts included
  int64_t peak_bytes = 0;  // of tensors, resumed parts included
  double flops = 0;
  std::optional<Scored> best = {};  // by the validation set
  std::optional<Score> test = {};   // of the best, when training came to its end
  std::string end = {};             // why it ended
  int signal = 0;                   // the one that ended it, or 0
};

// Where and how a training is kept.
struct RunOptions {
  std::string folder;
  // "": a new run. "auto": goes on from the newest checkpoint that is whole, or begins.
  // Else the folder of a checkpoint to go on from.
  std::string resume = {};
  bool quiet = false;
  int64_t at_once = 1;  // trainings that share this machine, as environment.json says
  // Called when the folder is held and the checkpoint taken, before anything is
  // written.
  std::function<void()> begin = {};
};

// Refuses options that do not fit each other or the model, by a UsageError.
void check_training(Objective& objective, const TrainOptions& options);

// Trains objective.model() in place: afterwards it has the best weights, if training
// came to its end, else the last. In `run.folder` it writes metrics.jsonl, log.txt,
// TensorBoard's files, checkpoints/ and the link `best`. A loss or gradient that is not
// finite, or a loss that diverges, is an Error that names the step; what was before the
// step is saved. SIGINT and SIGTERM save and return.
TrainResult train(Objective& objective, const TrainOptions& options,
                  const RunOptions& run);

// Gives a model the weights of a checkpoint; refuses other names and shapes. Returns
// what it carries, which is kept with them, on the device of the model.
Record load_weights(torch::nn::Module& model, const NamedTensors& weights,
                    const std::string& source);

}  // namespace longspan
