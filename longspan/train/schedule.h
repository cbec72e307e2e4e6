// The learning rate over the steps: a product of factors.

#pragma once

#include <cstdint>
#include <vector>

#include "longspan/base/value.h"

namespace longspan {

// A list of factors by name, or with settings as {name: cosine, steps: 1000}:
//   constant      1
//   warmup        from `floor` up to 1 over `steps` steps
//   rsqrt         1 / sqrt(max(step, start)), not below `floor`
//   rsqrt_scaled  the same times sqrt(start): 1 up to `start`
//   cosine        from 1 down to `floor` over `steps` steps after `start`, along half a
//                 cosine; `restart: true` begins again, else it stays
//   linear        the same along a line
//   halving       `factor` (0.5) to the power of floor(step / steps), not below `floor`
// `floor` and `start` are 0 unless given. `steps` may be left out of cosine and linear
// where training has a number of steps: they then end with it.
class Schedule {
 public:
  // `total` is the number of steps of the training, 0 if not known.
  Schedule(double rate, const Value& factors, int64_t total);

  // Whether rates depend on the number of steps of the training.
  bool ends_with_training() const { return ends_with_training_; }

  // The learning rate of step `step`, counted from 0.
  double at(int64_t step) const;

 private:
  enum class Shape { constant, warmup, rsqrt, rsqrt_scaled, cosine, linear, halving };
  struct Factor {
    Shape shape = Shape::constant;
    double steps = 0, start = 0, floor = 0, factor = 0.5;
    bool restart = false;
  };

  static double at(const Factor& factor, double step);

  double rate_;
  std::vector<Factor> factors_;
  bool ends_with_training_ = false;
};

}  // namespace longspan
