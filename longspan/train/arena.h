// Several models, or ways of training them, under one budget: each is trained with
// every seed, and what came out is put side by side.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/train/experiment.h"

namespace longspan {

struct ArenaOptions {
  Experiment experiment = {};  // what all have in common
  Value entries = Value::List{};
  Value seeds = Value::List{1};
};

// Every option by its dotted name; those of the experiment as there, and "arena.seeds"
// and "arena.entries".
Fields fields(ArenaOptions& options);

// What one training gave, or why there was none.
struct ArenaRun {
  std::string folder = {};
  int64_t seed = 0;
  std::string refused = {};  // by the model or the training, with the reason
  int64_t best_step = 0;
  double accuracy = 0, loss = 0;  // of the test
  Measures measures = {};         // of the test, in the terms of the task
  // By the mean probabilities of several passes, where the entry asks for it.
  std::vector<double> sampled = {};  // accuracy, loss, then the measures
  double tokens_per_second = 0;
  int64_t peak_bytes = 0, parameters = 0;
  double flops = 0, seconds = 0;
};

struct ArenaEntry {
  std::string name = {};
  std::vector<std::pair<std::string, Value>> values = {};  // by dotted name
  int64_t samples = 0;  // passes whose probabilities are averaged, beside one
  std::vector<ArenaRun> runs = {};
};

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

// Trains what `folder` does not have yet: a run that was stopped goes on, one that came
// to its end is read. `tell` is called before each training and with every refusal.
ArenaResult run_arena(const ArenaOptions& options, const std::string& folder,
                      bool quiet, const std::function<void(const std::string&)>& tell);

// The mean and the standard deviation of a number over the runs that were not refused.
struct Spread {
  double mean = 0, deviation = 0;
  int64_t count = 0;
};
Spread spread_of(const ArenaEntry& entry,
                 const std::function<double(const ArenaRun&)>& number);

}  // namespace longspan
