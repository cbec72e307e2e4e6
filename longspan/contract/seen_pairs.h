// Who sees whom in a mechanism, found by gradients.

#pragma once

#include <cstdint>

#include <torch/types.h>

#include "longspan/contract/subject.h"

namespace longspan {

struct SeenPairs {
  torch::Tensor pairs;   // [H|1, n, tokens] bool, on the CPU
  torch::Tensor tokens;  // [n]: the token each row stands for
};

// A row sees a token if what comes out of it changes with what is mixed of the token: v
// or x.
SeenPairs seen_pairs(const Subject& subject, int64_t tokens, bool causal);

}  // namespace longspan
