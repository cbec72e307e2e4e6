// Sums in double; see vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec_any.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// The first `count` of x * y to sums in double.
[[maybe_unused, gnu::always_inline]] inline void add(const Floats& x, const Floats& y,
                                                     double* to, int64_t count) {
  if (count < kLanes) {
    for (int64_t i = 0; i < count; ++i)
      to[i] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    return;
  }
  for (int half = 0; half < 2; ++half) {
    double* place = to + half * (kLanes / 2);
    store(load(place) + in_double(x, half) * in_double(y, half), place);
  }
}

// The sum of a[i] * b[i].
template <class Number>
[[gnu::always_inline]] inline double dot(const Number* a, const Number* b,
                                         int64_t size) {
  constexpr int kChains = 4;  // sums that do not wait for each other
  constexpr int kStep = kLanesOf<double>;
  Doubles sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kStep <= size; i += kChains * kStep)
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) {
      const int64_t at = i + chain * kStep;
      sums[chain] += load_double(a + at, kStep) * load_double(b + at, kStep);
    }
  for (; i < size; i += kStep)
    sums[0] += load_double(a + i, size - i) * load_double(b + i, size - i);
  return sum_in_double((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
