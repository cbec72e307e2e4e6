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
  Experiment experiment = {};           // of the first run; of a refused one as far as
                                        // its arena says
  std::vector<History> histories = {};  // of the runs; empty where there is none
  Environment environment = {};         // of the first run
  uint32_t data = 0;                    // fingerprint of the examples; 0: not known

  const std::string& name() const { return entry.name; }
  bool is_judged() const { return whole_run(entry) != nullptr; }
  // By name, without settings; of all layers, or of all but some.
  std::string mechanism() const;
  std::string shape() const;  // "4 x 2": layers x heads
};

// What is judged by one test set.
struct Comparison {
  std::vector<Contender> contenders = {};
  std::vector<Reference> references = {};
  std::vector<std::string> facts = {};
  // What they are judged by: accuracy, or what a loss means in the terms of the task.
  std::string measure = "accuracy";

  bool more_is_better() const { return measure == "accuracy"; }
};

// Of folders of runs, and of arenas, which have an arena.json; one for each task, or
// data of it. Runs that have all options but the seed in common are one contender. A
// run that did not come to its end counts as refused.
std::vector<Comparison> read_comparisons(const std::vector<std::string>& folders);

// What a contender is judged by; nothing where no run came to its end.
Spread judged(const Comparison& comparison, const Contender& contender);
Spread mean_of(const Contender& contender, double (*number)(const ArenaRun&));

// "53.4 %", "1.93", with the deviation of several runs.
std::string judged_text(const Comparison& comparison, const Spread& spread);

// A row for each contender, for people.
Table result_table(const Comparison& comparison);
// A row for each run, with all digits, for programs.
Table run_table(const std::vector<Comparison>& comparisons);

// "local, seed 1: ..": each run without a result, and each that could not be timed,
// with the reason.
std::vector<std::string> refusals(const Comparison& comparison);

// "37.5 MB"
std::string bytes_text(double bytes);
// "12.3 ms"
std::string time_text(double seconds);

}  // namespace longspan::report
