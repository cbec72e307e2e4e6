// Options of the commands that take a configuration.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "longspan/train/experiment.h"

namespace longspan::cli {

class ExperimentOptions {
 public:
  // Adds -c, --data, --attention, --seed, --device, --dump-config and --threads; every
  // other option of the command that has a dot is a value of the configuration. So that
  // such values are not mistaken for them, the command's own words without an option
  // are read here as well: at most `words`.
  explicit ExperimentOptions(CLI::App& verb, size_t words = 0);

  // The standard values, replaced by those of `first` (a file, or none), of the files
  // and of the command line. Every mistake is a UsageError.
  Experiment resolved(const std::string& first = "") const;
  // The same for options that hold more than an experiment; `into` are their fields.
  void resolve(Fields into, const std::string& first = "") const;

  // Prints the configuration if that was asked for.
  bool dumped(const Fields& fields) const;

  bool has_files() const { return !files_.empty(); }

  // Whether the command line has a value of its own for the dotted `name`.
  bool gives(const std::string& name) const;

  // The words of the command line that belong to no option.
  std::vector<std::string> words() const { return extras().words; }

 private:
  struct Extras {
    std::vector<std::string> words;
    std::vector<std::pair<std::string, std::string>> values;  // by dotted name
  };
  Extras extras() const;

  CLI::App& verb_;
  size_t words_;
  std::vector<std::string> files_;
  std::vector<std::pair<std::string, std::string>> shorthands_;
  bool dump_ = false;
};

}  // namespace longspan::cli
