// A line on a terminal that says how far long work is; none where standard error is no
// terminal.

#pragma once

#include <cstdint>
#include <string>

namespace longspan {

class Progress {
 public:
  Progress(std::string what, int64_t all);  // "drawing images", 200000
  ~Progress();                              // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void tell(int64_t done) const;

  // No lines from now on, or lines again.
  static void be_quiet(bool quiet);

 private:
  std::string what_;
  int64_t all_;
  bool shown_;
};

}  // namespace longspan
