// A polite end: SIGINT and SIGTERM let the work come to a place where it can be saved.

#pragma once

#include <csignal>

namespace longspan {

// While one lives, the first such signal is only noted; a later one ends the process.
// One at a time.
class StopSignals {
 public:
  // So many seconds count as one signal: a terminal, a shell and a batch system may
  // each send it.
  static constexpr double kOne = 0.5;

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The number of the signal that came, or 0.
  static int noted();

 private:
  struct sigaction before_[2];
};

}  // namespace longspan
