// What a run tells: metrics.jsonl for programs, TensorBoard's files, log.txt and one
// live line for people.

#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/train/event_file.h"

namespace longspan {

struct JournalOptions {
  bool tensorboard = true;
  bool quiet = false;  // nothing on standard error
};

// Numbers of one event by name.
using Metrics = std::vector<std::pair<std::string, double>>;

class Journal {
 public:
  // In the folder of a run that goes on after `step`: what was told of later steps and
  // of the test at the end is dropped.
  Journal(const std::string& folder, int64_t step, const JournalOptions& options);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // `event`: train, valid or test.
  void metrics(const std::string& event, int64_t step, const Metrics& values);

  // A line that stays.
  void say(const std::string& line);

  // A line that the next replaces where standard error is a terminal.
  void progress(const std::string& line);

  // A line of log.txt alone.
  void log(const std::string& line);

  void flush();

 private:
  JournalOptions options_;
  std::string metrics_path_;
  std::FILE *metrics_ = nullptr, *log_ = nullptr;
  std::unique_ptr<EventFile> events_;
  bool terminal_ = false;
  size_t shown_ = 0;  // letters of the live line
};

}  // namespace longspan
