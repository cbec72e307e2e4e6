// Where the values of an axis lie in a chart.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "longspan/report/chart.h"

namespace longspan::report {

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  bool empty() const { return most < least; }
  void include(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

// From values to pixels, with a margin around `range`.
class Place {
 public:
  Place(const Axis& axis, const Range& range, double from, double to);

  double operator()(double value) const {
    return from_ + (to_ - from_) * (scaled(value) - low_) / (high_ - low_);
  }

  // Those of the axis, else round numbers.
  std::vector<double> ticks() const;

 private:
  double scaled(double value) const;
  double value_at(double scaled) const;
  std::vector<double> inside(const std::vector<double>& values) const;
  std::vector<double> equally_spaced() const;

  const Axis& axis_;
  double from_, to_;
  double low_, high_;  // scaled
};

}  // namespace longspan::report
