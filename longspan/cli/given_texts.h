// Texts that a user gives to a trained model.

#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "longspan/train/experiment.h"

namespace longspan::cli {

class GivenTexts {
 public:
  // Adds the option --file; every other word of the command that no option takes is a
  // text: CLI11 would make a list of one in brackets.
  explicit GivenTexts(CLI::App& verb);

  // Refuses what is no option, and texts beside a file. To be called first.
  void check() const;

  // Those of the command line, of the file, or of standard input, one a line.
  std::vector<std::string> read(const TrainedModel& trained) const;

 private:
  CLI::App& verb_;
  std::string file_;
};

}  // namespace longspan::cli
