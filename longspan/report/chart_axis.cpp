#include "longspan/report/chart_axis.h"

#include <cmath>

namespace longspan::report {

Place::Place(const Axis& axis, const Range& range, double from, double to)
    : axis_(axis), from_(from), to_(to) {
  low_ = scaled(range.least);
  high_ = scaled(range.most);
  const double margin =
      high_ > low_ ? axis.margin * (high_ - low_) : std::max(0.5, 0.1 * std::abs(low_));
  low_ -= margin;
  high_ += margin;
}

double Place::scaled(double value) const {
  return axis_.scale == Scale::linear ? value : std::log10(value);
}

double Place::value_at(double scaled) const {
  return axis_.scale == Scale::linear ? scaled : std::pow(10, scaled);
}

std::vector<double> Place::ticks() const {
  if (!axis_.ticks.empty()) return axis_.ticks;
  if (axis_.scale == Scale::linear) return equally_spaced();
  constexpr size_t kEnough = 4;
  for (const auto& digits :
       {std::vector<double>{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}}) {
    std::vector<double> values;
    for (double power = std::floor(low_); power <= high_; ++power)
      for (const double digit : digits) values.push_back(digit * std::pow(10, power));
    values = inside(values);
    if (values.size() >= kEnough) return values;
  }
  return equally_spaced();
}

std::vector<double> Place::inside(const std::vector<double>& values) const {
  std::vector<double> kept;
  for (const double value : values)
    if (scaled(value) >= low_ && scaled(value) <= high_) kept.push_back(value);
  return kept;
}

// About five, a multiple of 1, 2 or 5 times a power of ten apart.
std::vector<double> Place::equally_spaced() const {
  const double least = value_at(low_), most = value_at(high_);
  const double rough = (most - least) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = power * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
  std::vector<double> values;
  for (double i = std::ceil(least / step); i * step <= most; ++i)
    values.push_back(i * step + 0.0);  // 0, never -0
  return values;
}

}  // namespace longspan::report
