// What `longspan bench kernels` measures.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "longspan/kernels/cpu/isa.h"

namespace longspan::cli {

using Step = std::function<torch::Tensor()>;

struct Work {
  Step ours, reference;
  double useful = 0, executed = 0;  // FLOP of ours; 0: not counted
  double scale = 1;    // makes the ratio of times one of speeds, where work differs
  bool alike = false;  // both compute the same values
};

// The ratio to reach; 0: none is set.
struct Target {
  double must = 0, good = 0;
};

struct Case {
  std::string name, reference;
  Target target;
  std::function<Work()> prepare;  // its tensors live only while it is measured
  std::optional<cpu::Isa> isa = {};
  int threads = 0;  // of ours; 0: those of the program
};

// What there are targets for, and what belongs beside them. `length` replaces that of
// every case unless it is 0.
std::vector<Case> main_cases(int64_t length);

// Every pattern, in every length at the usual width and in every width at one length;
// linear attention, merging and pooling in every length.
std::vector<Case> sweep_cases(int64_t length);

}  // namespace longspan::cli
