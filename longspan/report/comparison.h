// Runs side by side, read from their folders and from those of arenas.

#pragma once

#include <string>
#include <vector>

#include "longspan/report/table.h"
#include "longspan/train/arena.h"
#include "longspan/train/environment.h"
#include "longspan/train/history.h"

namespace longspan::report {

// One of those that are compared: its runs differ in their seeds alone.
struct Contender {
  ArenaEntry entry = {};
  Experiment experiment = {};           // of the first run; the standard one if refused
  std::vector<History> histories = {};  // of the runs; empty where there is none
  Environment environment = {};         // of the first run

  const std::string& name() const { return entry.name; }
  bool is_judged() const { return whole_run(entry) != nullptr; }
};

struct Comparison {
  std::vector<Contender> contenders = {};
  std::vector<Reference> references = {};
  std::vector<std::string> facts = {};
  // What they are judged by: accuracy, or what a loss means in the terms of the task.
  std::string measure = "accuracy";

  bool more_is_better() const { return measure == "accuracy"; }
};

// Of folders of runs, and of arenas, which have an arena.json. Runs that have all
// options but the seed in common are one contender. A run that did not come to its end
// counts as refused.
Comparison read_comparison(const std::vector<std::string>& folders);

// What a contender is judged by; nothing where no run came to its end.
Spread judged(const Comparison& comparison, const Contender& contender);
Spread mean_of(const Contender& contender, double (*number)(const ArenaRun&));

// "53.4 %", "1.93", with the deviation of several runs.
std::string judged_text(const Comparison& comparison, const Spread& spread);

// A row for each contender, for people.
Table result_table(const Comparison& comparison);
// A row for each run, with all digits, for programs.
Table run_table(const Comparison& comparison);

// "local, seed 1: ..": each run without a result, with the reason.
std::vector<std::string> refusals(const Comparison& comparison);

}  // namespace longspan::report
