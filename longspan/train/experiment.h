// A task, a model and a training by their options; and runs, the folders in which they
// are kept:
//
//   config.yaml     every option, as resolved
//   labels.json, vocabulary
//                   what is needed to read new texts, for tasks that have them
//   metrics.jsonl, log.txt, events.out.tfevents...
//   checkpoints/    see checkpoint.h
//   best            a link to the best of them
//   result.json     written when training has come to its end

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/base/config.h"
#include "longspan/models/classifier.h"
#include "longspan/tasks/task.h"
#include "longspan/train/trainer.h"

namespace longspan {

struct Experiment {
  TaskOptions task = {};
  TransformerOptions model = {};
  TrainOptions train = {};
};

// Every option by its dotted name: "task.name", "model.layers", "train.steps".
Fields fields(Experiment& experiment);

// The model that the goal of a task asks for; the other is null.
struct TaskModel {
  std::shared_ptr<Classifier> classifier = {};
  std::shared_ptr<LanguageModel> language = {};

  torch::nn::Module& module() const;
  // With the loss of the goal; `task` and the model must outlive it.
  std::unique_ptr<Objective> objective(const Task& task) const;
};

// A new model for the task, its weights drawn from train.seed, on train.device.
TaskModel make_model(const Experiment& experiment, const Task& task);

// The operations of one forward pass over one sequence of `length` tokens, counted
// while it runs.
int64_t forward_flops(const TaskModel& model, const Task& task, int64_t length,
                      torch::Device device);

// The options of the run in `folder`.
Experiment stored_experiment(const std::string& folder);

// Refuses options with which the run in `folder` cannot go on: all must be those of the
// run, but for budgets and what does not change the weights.
void check_same(Experiment given, const std::string& folder);

struct RunResult {
  TrainResult training = {};
  Goal goal = Goal::label;
  int64_t parameters = 0;
  std::vector<Reference> references = {};
  std::vector<std::string> facts = {};
  // What the scores of the best and of its test mean in the terms of the task.
  Measures valid = {}, test = {};
};

// Opens the task, makes the model and trains it in run.folder. A folder that holds a
// run is refused unless run.resume says to go on; then check_same() must hold.
RunResult run_experiment(Experiment experiment, const RunOptions& run);

struct Prediction {
  std::vector<double> probabilities;  // of the labels
  bool cut = false;                   // the text was longer than the model reads
};

struct Filled {
  std::string text;  // with the likeliest tokens
  // For every mask the likeliest tokens and their probabilities.
  std::vector<std::vector<std::pair<std::string, double>>> masks = {};
};

// A trained model, ready to use.
struct TrainedModel {
  Experiment experiment = {};
  Task task = {};  // without examples
  TaskModel model = {};
  Record carry = {};            // what the model keeps, if that is of the model
  std::string checkpoint = {};  // its folder
  uint32_t data = 0;            // fingerprint of the examples it was trained on

  // The labels of texts.
  std::vector<Prediction> predict(const std::vector<std::string>& texts);

  // What stands where texts have `mask`: the `count` likeliest tokens.
  std::vector<Filled> fill(const std::vector<std::string>& texts,
                           const std::string& mask, int64_t count);
};

// Opens the run in `folder` with its best checkpoint, or with `checkpoint`: best, last,
// or the folder of one. `device` replaces that of the training if it is not empty.
TrainedModel open_run(const std::string& folder, const std::string& checkpoint = "best",
                      const std::string& device = "");

}  // namespace longspan
