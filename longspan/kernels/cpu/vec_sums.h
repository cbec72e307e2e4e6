// Sums of columns in double; see vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec.h"

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

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
