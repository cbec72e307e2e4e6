// Several models, or ways of training them, under one budget: each is trained with
// every seed, and what came out is put side by side.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/train/experiment.h"
#include "longspan/train/timing.h"

namespace longspan {

struct ArenaOptions {
  Experiment experiment = {};  // what all have in common
  Value entries = Value::List{};
  Value seeds = Value::List{1};
  int64_t processes = 1;         // that train at once
  int64_t latency_passes = 100;  // forward passes timed of each entry; 0: none
};

// Every option by its dotted name; those of the experiment as there, and "arena.seeds",
// "arena.entries", ..
Fields fields(ArenaOptions& options);

// What one training gave, or why there is nothing.
struct ArenaRun {
  std::string folder = {};
  int64_t seed = 0;
  std::string refused = {};  // by the model or the training, with the reason
  bool goes_on = false;      // it is not refused, but `refused` says how far it is
  int64_t best_step = 0;
  double accuracy = 0, loss = 0;  // of the test
  Measures measures = {};         // of the test, in the terms of the task
  // By the mean probabilities of several passes, where the entry asks for it.
  std::vector<double> sampled = {};  // accuracy, loss, then the measures
  int64_t answers = 0;               // of the test
  double tokens_per_second = 0;      // in training, without evaluations, checkpoints
  int64_t peak_bytes = 0, parameters = 0;
  int64_t checkpoint_bytes = 0;  // of the best: weights and moments
  double flops = 0, seconds = 0;
  std::vector<Reference> references = {};
  std::vector<std::string> facts = {};
};

// What the run in `folder`, which came to its end, gave. An Error where it did not.
ArenaRun read_run(const std::string& folder);

// The same, or how far it is.
ArenaRun run_so_far(const std::string& folder);

struct ArenaEntry {
  std::string name = {};
  std::vector<std::pair<std::string, Value>> values = {};  // by dotted name
  int64_t samples = 0;  // passes whose probabilities are averaged, beside one
  std::vector<ArenaRun> runs = {};
  std::optional<Latency> latency = {};  // of the first that was not refused
  std::string untimed = {};             // why it could not be measured
};

// The first run that was not refused, or null.
const ArenaRun* whole_run(const ArenaEntry& entry);

// The entries of options.entries: {name: .., samples: .., model.attention: .., ..}, or
// a word alone, which is a mechanism. A UsageError says what is wrong with one.
std::vector<ArenaEntry> arena_entries(const ArenaOptions& options);

// The experiment of an entry with one seed.
Experiment experiment_of(const ArenaOptions& options, const ArenaEntry& entry,
                         int64_t seed);

struct ArenaResult {
  std::vector<ArenaEntry> entries = {};
  int signal = 0;  // the one that ended it before all was trained, or 0
};

// The file in which an arena's folder has its options, as it was begun or gone on with.
std::string arena_options_path(const std::string& folder);

// Trains what `folder` does not have yet: a run that was stopped goes on, one that came
// to its end is read, one that was begun with other options is refused. `tell` is
// called before each training and with every refusal. With options.processes above 1
// that many trainings run at once, each as `program train -c FILE --out FOLDER --resume
// auto` of its own. When all are trained, latencies are measured, one after the other,
// and kept. arena.json is there from the beginning on.
ArenaResult run_arena(const ArenaOptions& options, const std::string& folder,
                      bool quiet, const std::function<void(const std::string&)>& tell,
                      const std::string& program = {});

// As JSON, with folders of runs as seen from `folder`.
std::string arena_json(const std::vector<ArenaEntry>& entries,
                       const std::string& folder);

// What run_arena() left in `folder`, or has got so far: the entries of its arena.json,
// with what their runs gave.
std::vector<ArenaEntry> read_arena(const std::string& folder);

// The mean and the standard deviation of a number over the runs that were not refused.
struct Spread {
  double mean = 0, deviation = 0;
  int64_t count = 0;
};
Spread spread_of(const ArenaEntry& entry,
                 const std::function<double(const ArenaRun&)>& number);

}  // namespace longspan
