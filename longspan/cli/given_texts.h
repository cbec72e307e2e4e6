// Texts that a user gives on the command line, in a file or on standard input.

#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace longspan::cli {

class GivenTexts {
 public:
  // Adds --file; words of the command line that are no options are texts.
  void add_to(CLI::App& verb, const std::string& called);
  // When the command line is read: takes its texts.
  void take_from(const CLI::App& verb);

  bool none() const { return texts_.empty() && file_.empty(); }
  // A table's texts are in `column`; without one its lines are. "-" is standard input.
  std::vector<std::string> read(const std::string& column) const;
  std::vector<std::string> read_standard_input() const;

 private:
  std::string called_, file_;
  std::vector<std::string> texts_;
};

}  // namespace longspan::cli
