// What a run told while it was trained, read back.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

// One event of metrics.jsonl.
struct Moment {
  int64_t step = 0;
  double loss = 0, accuracy = 0;
  double seconds = 0;            // of training so far, without evaluations
  double tokens_per_second = 0;  // of train alone
};

struct History {
  std::vector<Moment> train = {}, valid = {};
};

// Of the run in `folder`, which need not have come to its end, or have begun. Lines
// that are no events are passed over: a run that was killed may have left half a one.
History read_history(const std::string& folder);

// The median speed of training, without the time of evaluations; 0 where none is told.
double tokens_per_second(const History& history);

}  // namespace longspan
