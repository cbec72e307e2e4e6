// The inner loop of matrix products: a small block of results that stays in registers;
// see vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// The widest block, in vectors, and how many rows a block of `vectors` has: as many
// sums as hide the latency of an addition and fit the registers.
#if defined(__AVX512F__)
constexpr int kWide = 4;
#else
constexpr int kWide = 2;
#endif
constexpr int rows_of_block(int vectors) { return vectors == 1 ? 8 : 4; }

template <class Number, int rows, int vectors>
struct Block {
  static constexpr int kLanes = kLanesOf<Number>;
  Vector<Number> at[rows][vectors];

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) at[i][j] = Vector<Number>{};
  }

  // Adds left(i, x) * right(x)[..] for x = from .. to - 1: left gives numbers, right
  // the address of `vectors` vectors.
  template <class Left, class Right>
  [[gnu::always_inline]] void add_products(const Left& left, const Right& right,
                                           int64_t from, int64_t to) {
#pragma GCC unroll 2
    for (int64_t x = from; x < to; ++x) {
      const Number* row = right(x);
      Vector<Number> b[vectors];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) b[j] = load(row + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const Number a = left(i, x);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j) at[i][j] += a * b[j];
      }
    }
  }

  // use(i, j, sum) for each of the sums.
  template <class Use>
  [[gnu::always_inline]] void each(const Use& use) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) use(i, j, at[i][j]);
  }
};

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
