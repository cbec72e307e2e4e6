// The trainings of an arena, one after the other or several at once.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "longspan/train/experiment.h"

namespace longspan {

struct ArenaJob {
  Experiment experiment = {};
  std::string folder = {}, title = {};
  std::string refused = {};  // by the model or the training, with the reason
};

struct ArenaWork {
  int64_t processes = 1;     // that train at once
  std::string program = {};  // started for each, where there are several
  bool quiet = false;
  std::function<void(const std::string&)> tell = {};  // of what begins and is refused
  std::function<void()> refused = {};                 // called when a job has been
};

// Refuses the jobs in whose folders a run was begun otherwise.
void refuse_begun(std::vector<ArenaJob>& jobs);

// Trains what is not trained yet: a run that was stopped goes on, or one whose budget
// grew. A folder in which another process still trains is waited for. Whatever is
// thrown for a job refuses that job. Returns the signal that ended it, or 0.
int train_jobs(const ArenaWork& work, std::vector<ArenaJob>& jobs);

}  // namespace longspan
