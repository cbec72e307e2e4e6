// Which sources the queries of a window are given, when attention is to sampled ones.

#pragma once

#include <cstdint>
#include <vector>

#include "longspan/base/random.h"

namespace longspan {

struct SourceSampling {
  int64_t windows = 4;
  double sigma = 0.2;    // how far sources are shuffled, as a part of the length
  bool biased = true;    // towards sources near the window; else all are alike
  bool uniform = false;  // noise of 0 .. 2 sigma; else normal
  bool shifted = false;  // as on a circle, begun anywhere; not causal
  double keep = 1;       // part of the sources of a window that it is given, at random
};

struct SourceWindows {
  int64_t size = 0;  // window w has queries w * size .. (w + 1) * size - 1
  std::vector<std::vector<int64_t>> sources;  // of each window, ascending
};

// One draw for `tokens` tokens, of 1 or more. Causal: the sources of a window are of
// the tokens up to its end, and, where all are kept, one at least is no later than its
// first query.
SourceWindows drawn_sources(const SourceSampling& sampling, int64_t tokens, bool causal,
                            Key key);

}  // namespace longspan
