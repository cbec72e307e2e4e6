// Mechanisms inside a mechanism: what the wrappers share.

#pragma once

#include <string>
#include <vector>

#include "longspan/attention/mechanism.h"

namespace longspan {

// A mechanism of a list in the settings, for some of the heads.
struct Wrapped {
  const Mechanism* row = nullptr;
  Value::Map settings = {};
  Sizes sizes = {};

  std::string name(size_t number) const { return "part" + std::to_string(number); }
};

// The mechanisms of setting `parts` for a layer of `sizes`. Heads are divided evenly,
// or as the list `heads` says if it is not empty; those of keys as those of queries.
std::vector<Wrapped> wrapped(const Settings& settings, const Sizes& sizes,
                             const Value::List& heads = {});

// Refuses, and says why, what cannot be inside a block beside something else.
void check_part(const Mechanism& row);

// Whether one of them draws the keys it meets.
bool samples(const std::vector<Wrapped>& parts);

// What decoding keeps for all of them.
int64_t state_size(const std::vector<Wrapped>& parts, int64_t tokens);

}  // namespace longspan
