// What linear attention and its gradient share: tokens are taken in chunks, whose pairs
// are multiplied out, while older keys come in sums. See vec.h for who may include
// this.

#pragma once

#include <math.h>

#include "longspan/kernels/cpu/linear_attention.h"
#include "longspan/kernels/cpu/vec_math.h"
#include "longspan/kernels/cpu/vec_tile.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

constexpr int64_t kChunk = 16;  // tokens
constexpr double kNever = -INFINITY;
constexpr double kLeastWeight = 1e-30;

[[maybe_unused]] inline float logarithm(float x) { return ::logf(x); }
[[maybe_unused]] inline double logarithm(double x) { return ::log(x); }

// The nearest whole number, unless it is so large that any is near; of Number or its
// vector.
template <class Number, class X>
inline X whole(const X& x) {
  constexpr Number kRounder = sizeof(Number) == 4 ? 0x1.8p23 : 0x1.8p52;
  return (x + kRounder) - kRounder;
}

// kChunk rows: the first `count` of `from`, less those of weight 0; `rest` in the rest.
template <class Number>
inline void pack(Rows<Number> from, int64_t count, int64_t width, const Number* weights,
                 Number rest, Number* to, int64_t stride) {
  for (int64_t row = 0; row < kChunk; ++row, to += stride) {
    const bool there = row < count && !(weights && weights[row] == 0);
    if (there) copy(from[row], width, to);
    for (int64_t i = there ? width : 0; i < stride; ++i) to[i] = rest;
  }
}

// Rows that can be read in place of packed ones.
inline bool is_packed(int64_t count, int64_t width) {
  return count == kChunk && width % kPadding == 0;
}

// Logs of decays inside a chunk.
struct Decays {
  double log[kChunk] = {};    // of each token
  double until[kChunk] = {};  // from the start of the chunk to each token
  double after[kChunk] = {};  // from each token to the end
  double total = 0;
};

inline Decays decays_of(const double* log_decay, int64_t count) {
  Decays decays;
  if (!log_decay) return decays;
  for (int64_t t = 0; t < kChunk; ++t) {
    if (t < count) decays.total += decays.log[t] = log_decay[t];
    decays.until[t] = decays.total;
  }
  for (int64_t t = 0; t < kChunk; ++t) decays.after[t] = decays.total - decays.until[t];
  return decays;
}

// to[i] = exp(log(i)), for the tokens of a chunk.
template <class Number, class Log>
inline void exponentials(const Log& log, Number* to) {
  for (int64_t i = 0; i < kChunk; ++i) to[i] = static_cast<Number>(log(i));
  for (int64_t i = 0; i < kChunk; i += kLanesOf<Number>)
    store(exp(load(to + i)), to + i);
}

// What num is multiplied by; num and den are times exp(-scale).
template <class Number>
inline Number factor_of(const LinearForm& form, Number den, Number scale) {
  constexpr Number kLeast = static_cast<Number>(1e-30);
  const auto epsilon = [&] {
    return static_cast<Number>(form.epsilon * ::exp(-static_cast<double>(scale)));
  };
  switch (form.divisor) {
    case LinearDivisor::none:
      return static_cast<Number>(::exp(static_cast<double>(scale)));
    case LinearDivisor::plus: return 1 / (den + epsilon());
    case LinearDivisor::at_least: {
      const Number least = epsilon();
      return 1 / (den > least ? den : least);
    }
    case LinearDivisor::if_positive: break;
  }
  return den <= kLeast ? 0 : 1 / den;
}

// Whether it has a slope in den.
template <class Number>
inline bool is_over_den(const LinearForm& form, Number den, Number scale) {
  switch (form.divisor) {
    case LinearDivisor::none: return false;
    case LinearDivisor::at_least:
      return den >
             static_cast<Number>(form.epsilon * ::exp(-static_cast<double>(scale)));
    case LinearDivisor::plus:
    case LinearDivisor::if_positive: break;
  }
  return true;
}

// Weights as exp(whole) * rest.
template <class Number>
struct Weights {
  Number whole[kChunk] = {};
  Number rest[kChunk] = {};
};

template <class Number>
inline void split(Number weight, Number* whole_part, Number* rest) {
  *whole_part = 0;
  *rest = weight;
  if (weight == 0 || weight == 1) return;
  const double size = ::fabs(static_cast<double>(weight));
  const double log = ::rint(::log(size < kLeastWeight ? kLeastWeight : size));
  *whole_part = static_cast<Number>(log);
  *rest = static_cast<Number>(static_cast<double>(weight) * ::exp(-log));
}

// What sums are relative to: the sums proper are times exp(peaks[f] + log_scale), for
// plain features without peaks. Log features are in range only relative to something:
// sums to a peak of each feature, queries to the largest term of their row. These are
// whole numbers, so that what is left of the logs is exact.
template <class Number>
struct Scale {
  static constexpr int kStep = kLanesOf<Number>;
  Number* peaks = nullptr;  // [width], minus infinity for sums of 0
  double log_scale = 0;     // of log features: more than -1

  // Lets sums of log features decay, and gives room to the features
  // rows[t] + whole[t] + after[t], by raising the peaks. Then `features` are these
  // relative to the sums, and `kept` is what to keep of the sums.
  void raise(double decay, Rows<Number> rows, int64_t count, int64_t width,
             const Number* whole_part, const double* after, Number* features,
             Number* kept) {
    const double whole_decay = ::ceil(log_scale + decay);
    log_scale += decay - whole_decay;
    Number rest[kChunk];
    for (int64_t t = 0; t < kChunk; ++t)
      rest[t] = static_cast<Number>(after[t] - log_scale);
    for (int64_t i = 0; i < width; i += kStep) {
      const Vector<Number> old = load(peaks + i) + static_cast<Number>(whole_decay);
      Vector<Number> top = old;
      for (int64_t t = 0; t < count; ++t)
        top = larger(load(rows[t] + i) + (whole_part[t] + rest[t]), top);
      top = larger(whole<Number>(top), old);
      store(top, peaks + i);
      const Vector<Number> base =
          top == static_cast<Number>(kNever) ? Vector<Number>{} : top;
      store(exp(old - base), kept + i);
      for (int64_t t = 0; t < count; ++t)
        store(exp((load(rows[t] + i) + (whole_part[t] - base)) + rest[t]),
              features + t * width + i);
    }
  }

  // features[t] = exp(rows[t] + whole[t] + log[t]), times the scale of the sums.
  void apply(Rows<Number> rows, int64_t width, const Number* whole_part,
             const double* log, Number* features) const {
    for (int64_t t = 0; t < kChunk; ++t) {
      const auto rest = static_cast<Number>(log[t] + log_scale);
      for (int64_t i = 0; i < width; i += kStep)
        store(exp((load(rows[t] + i) + (load(peaks + i) + whole_part[t])) + rest),
              features + t * width + i);
    }
  }

  // Lets sums of plain features decay. Then what is added is to be times `factors`,
  // exp(after[t]) relative to the sums, and of the sums the result is to be kept, all
  // where it is null. Rounding the sums at every chunk would add up: decays go into
  // log_scale until it gets small.
  const Number* fade(double decay, const double* after, Number* factors, Number* kept,
                     int64_t width) {
    constexpr double kDeepest = -4;
    const double later = log_scale + decay;
    log_scale = later > kDeepest ? later : 0;
    exponentials([&](int64_t t) { return after[t] - log_scale; }, factors);
    if (later > kDeepest) return nullptr;
    const auto rest = static_cast<Number>(::exp(later));
    for (int64_t f = 0; f < width; ++f) kept[f] = rest;
    return kept;
  }
};

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
