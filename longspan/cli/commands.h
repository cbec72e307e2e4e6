// The verbs of the program. Each adds itself to the command line; what it does when
// chosen is its callback.

#pragma once

#include <CLI/CLI.hpp>

#include "longspan/base/error.h"

namespace longspan::cli {

// The command line or configuration is wrong: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// What the command did not find in order: exit code 1. Its message has been printed.
class Failed {};

// Turns an Error about an argument into a UsageError.
template <class Resolve>
auto argument(Resolve resolve) {
  try {
    return resolve();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void add_list(CLI::App& program);
void add_describe(CLI::App& program);
void add_info(CLI::App& program);
void add_check(CLI::App& program);
void add_data(CLI::App& program);

}  // namespace longspan::cli
