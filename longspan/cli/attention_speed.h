// How fast a mechanism is beside dense attention, length by length.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/attention/mechanism.h"
#include "longspan/base/interleaved.h"
#include "longspan/cli/attention_layer.h"

namespace longspan::cli {

// At one length. What was not measured is 0.
struct AttentionSpeed {
  int64_t length = 0;
  Spent ours = {}, dense = {};  // of a pass
  Spent ratio = {};             // dense / ours, turn by turn
  bool extrapolated = false;    // the time of dense
  double flops = 0;             // of the forward pass
  double useful_gflops = 0;     // a second
  int64_t peak_bytes = 0, dense_peak_bytes = 0;
};

struct Turns {
  int64_t count = 5;
  // Dense attention over more tokens is not timed: it is taken to grow as N^2 from the
  // longest that was.
  int64_t dense_until = 16384;
};

// Medians over `turns`; memory that the passes need is kept.
Spent timed(AttentionLayer& layer, int64_t turns);
Interleaved timed(AttentionLayer& ours, AttentionLayer& theirs, int64_t turns);

// Measures an Attention on q, k and v beside dense attention on such, a Mixer on x
// beside dense attention between projections, a Stack beside as many blocks of dense
// attention as it runs.
class AttentionBench {
 public:
  AttentionBench(const Mechanism& mechanism, Value::Map settings,
                 const AttentionSetup& setup, const Turns& turns);

  // Lengths must come in growing order.
  AttentionSpeed measured(int64_t length);

 private:
  AttentionLayer layer(int64_t length) const;
  AttentionLayer dense_layer(int64_t length, int64_t blocks) const;
  void extrapolate_dense(AttentionSpeed& speed, int64_t blocks);

  const Mechanism& mechanism_;
  Value::Map settings_;
  AttentionSetup setup_;
  Turns turns_;
  struct {
    int64_t length = 0;
    Spent spent = {};
  } longest_dense_;  // of those timed
};

// Than dense: at no length, at some but not at the longest, at all from a crossover on,
// at all.
enum class Faster { never, sometimes, from_crossover, always };

// How time and memory grow with the length.
struct Growth {
  // Exponents of N by least squares over the logarithms; none for fewer than two
  // lengths.
  std::optional<double> time = {}, memory = {};
  Faster faster = Faster::never;
  std::optional<double> crossover = {};  // between two lengths: where the ratio is 1
  bool extrapolated = false;             // the time of dense at one of the two
};

Growth growth(const std::vector<AttentionSpeed>& speeds);

}  // namespace longspan::cli
