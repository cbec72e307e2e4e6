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
  // other option of the command that has a dot is a value of the configuration.
  explicit ExperimentOptions(CLI::App& verb);

  // The standard values, replaced by those of `first` (a file, or none), of the files
  // and of the command line. Every mistake is a UsageError.
  Experiment resolved(const std::string& first = "") const;

  // Prints the configuration if that was asked for.
  bool dumped(Experiment experiment) const;

  bool has_files() const { return !files_.empty(); }

 private:
  CLI::App& verb_;
  std::vector<std::string> files_;
  std::vector<std::pair<std::string, std::string>> shorthands_;
  bool dump_ = false;
};

}  // namespace longspan::cli
