// What every mechanism must keep, as checks that run over any row: those of the
// catalogue, and a new one before it joins.

#pragma once

#include <span>
#include <string>
#include <string_view>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"

namespace longspan {

struct Verdict {
  enum class State {
    holds,
    refused,  // the row does not claim it, and asking for it is an error that says so
    broken,
  };
  State state = State::holds;
  std::string detail = {};  // what is broken, with the case
};

struct Clause {
  int number = 0;
  std::string_view title;  // "does not look ahead"
  Verdict (*check)(const Mechanism& mechanism, torch::Device device) = nullptr;
};

// The ten clauses, 0 to 9. Each draws its inputs from a fixed seed.
std::span<const Clause> contract();

}  // namespace longspan
