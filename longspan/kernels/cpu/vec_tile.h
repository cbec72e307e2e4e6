// Rows of numbers in scratch and in memory, and products of them; see vec.h for who may
// include this.

#pragma once

#include "longspan/kernels/cpu/vec_memory.h"
#include "longspan/kernels/cpu/vec_product.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

template <class Number>
struct Rows {
  const Number* first = nullptr;
  int64_t stride = 0;

  const Number* operator[](int64_t row) const { return first + row * stride; }
};

// 0, 1, .. as template arguments.
template <int... lane>
struct Lanes {};
template <int count, int... lane>
struct LanesBelow : LanesBelow<count - 1, count - 1, lane...> {};
template <int... lane>
struct LanesBelow<0, lane...> {
  using Type = Lanes<lane...>;
};
template <class Number>
using AllLanes = typename LanesBelow<kLanesOf<Number>>::Type;

// The lanes turned round by `by`.
template <int by, class X, int... lane>
[[gnu::always_inline]] inline X turned(const X& x, Lanes<lane...>) {
  return __builtin_shufflevector(x, x, ((lane + by) % int{sizeof...(lane)})...);
}

template <class Number, int by = kLanesOf<Number> / 2>
[[gnu::always_inline]] inline Number sum_of(Vector<Number> x) {
  x += turned<by>(x, AllLanes<Number>());
  if constexpr (by > 1) return sum_of<Number, by / 2>(x);
  return x[0];
}

template <class Number, int by = kLanesOf<Number> / 2>
[[gnu::always_inline]] inline Number largest_of(Vector<Number> x) {
  x = larger(x, turned<by>(x, AllLanes<Number>()));
  if constexpr (by > 1) return largest_of<Number, by / 2>(x);
  return x[0];
}

template <class Number>
inline void copy(const Number* from, int64_t count, Number* to) {
  int64_t i = 0;
  for (; i + kLanesOf<Number> <= count; i += kLanesOf<Number>)
    store(load(from + i), to + i);
  for (; i < count; ++i) to[i] = from[i];
}

// to[i] += from[i] * by, for the first `count`.
template <class Number>
inline void add(const Number* from, Number by, int64_t count, Number* to) {
  int64_t i = 0;
  for (; i + kLanesOf<Number> <= count; i += kLanesOf<Number>)
    store(load(to + i) + load(from + i) * by, to + i);
  for (; i < count; ++i) to[i] += from[i] * by;
}

// to[i] = from[i] * by, in whole vectors.
template <class Number>
inline void multiply(const Number* from, Number by, int64_t count, Number* to) {
  for (int64_t i = 0; i < count; i += kLanesOf<Number>)
    store(load(from + i) * by, to + i);
}

// work(block, row, column) for blocks that cover the matrix and the padding after it.
template <class Number, int vectors, class Work>
[[gnu::always_inline]] inline void down(int64_t rows, int64_t column,
                                        const Work& work) {
  constexpr int kRows = rows_of_block(vectors);
  for (int64_t row = 0; row < rows; row += kRows) {
    Block<Number, kRows, vectors> block;
    work(block, row, column);
  }
}

template <class Number, class Work>
[[gnu::always_inline]] inline void each_block(int64_t rows, int64_t columns,
                                              const Work& work) {
  constexpr int kStep = kLanesOf<Number>;
  int64_t column = 0;
  for (; column + kWide * kStep <= columns; column += kWide * kStep)
    down<Number, kWide>(rows, column, work);
  for (; column + kStep < columns; column += 2 * kStep)
    down<Number, 2>(rows, column, work);
  for (; column < columns; column += kStep) down<Number, 1>(rows, column, work);
}

template <class Number, int rows, int vectors>
constexpr int rows_of(const Block<Number, rows, vectors>&) {
  return rows;
}

// Swaps the upper right with the lower left of ever smaller squares.
template <class Number, int half, int... lane>
[[gnu::always_inline]] inline void transpose(Vector<Number>* tile,
                                             Lanes<lane...> lanes) {
  constexpr int kStep = kLanesOf<Number>;
#pragma GCC unroll 16
  for (int i = 0; i < kStep; ++i) {
    if (i & half) continue;
    const Vector<Number> a = tile[i], b = tile[i + half];
    tile[i] =
        __builtin_shufflevector(a, b, (lane & half ? kStep + lane - half : lane)...);
    tile[i + half] =
        __builtin_shufflevector(a, b, (lane & half ? kStep + lane : lane + half)...);
  }
  if constexpr (half > 1) transpose<Number, half / 2>(tile, lanes);
}

// to[column][row] = from[row][column], and whole vectors of the padding.
template <class Number>
inline void transpose(Rows<Number> from, int64_t rows, int64_t columns, Number* to,
                      int64_t to_stride) {
  constexpr int kStep = kLanesOf<Number>;
  for (int64_t row = 0; row < rows; row += kStep)
    for (int64_t column = 0; column < columns; column += kStep) {
      Vector<Number> tile[kStep];
#pragma GCC unroll 16
      for (int i = 0; i < kStep; ++i) tile[i] = load(from[row + i] + column);
      transpose<Number, kStep / 2>(tile, AllLanes<Number>());
#pragma GCC unroll 16
      for (int i = 0; i < kStep; ++i)
        store(tile[i], to + (column + i) * to_stride + row);
    }
}

// The lanes of a vector from `first` on that are `bound` or more.
inline uint64_t lanes_from(int64_t bound, int64_t first) {
  return bound <= first ? ~uint64_t{0} : ~uint64_t{0} << (bound - first);
}

// Calls rows that will be read next into the cache, some at a time: often every chunk
// is in other pages, where the processor's own prefetching stops.
template <class Number>
class Ahead {
 public:
  void add(const Number* rows, int64_t stride, int64_t count, int64_t width) {
    if (!rows || count <= 0 || width <= 0) return;
    parts_[added_++] = {rows, stride, count, width};
    lines_ += count * ((width + kLine - 1) / kLine);
  }

  // For each block of a product.
  int64_t lines(int64_t rows, int64_t columns) const {
    constexpr int64_t kRows = rows_of_block(kWide), kColumns = kWide * kLanesOf<Number>;
    const int64_t blocks =
        ((rows + kRows - 1) / kRows) * ((columns + kColumns - 1) / kColumns);
    return blocks > 0 ? (lines_ + blocks - 1) / blocks : 0;
  }

  void call(int64_t lines) {
    for (; lines > 0 && part_ < added_; --lines) {
      const Part& part = parts_[part_];
      __builtin_prefetch(part.rows + row_ * part.stride + column_);
      column_ += kLine;
      if (column_ < part.width) continue;
      column_ = 0;
      if (++row_ < part.count) continue;
      row_ = 0;
      ++part_;
    }
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(Number);
  struct Part {
    const Number* rows;
    int64_t stride, count, width;
  };
  Part parts_[6];
  int64_t added_ = 0, lines_ = 0;
  int64_t part_ = 0, row_ = 0, column_ = 0;
};

// sums[row][column] += left[x][row] * right[x][column], over the first `count` x. Of
// the old sums `kept` is kept, of each row or of each column; all, where it is null.
template <bool of_rows, class Number>
inline void add_products(Rows<Number> left, Rows<Number> right, int64_t count,
                         int64_t rows, int64_t columns, const Number* kept,
                         Number* sums, int64_t stride, Ahead<Number> ahead) {
  constexpr int kStep = kLanesOf<Number>;
  const int64_t lines = ahead.lines(rows, columns);
  each_block<Number>(
      rows, columns,
      [&](auto& block, int64_t row, int64_t column) __attribute__((always_inline)) {
        Number* const at = sums + row * stride + column;
        ahead.call(lines);
        block.clear();  // added up apart: many small to one large would add up errors
        block.add_products([&](int i, int64_t x) { return left[x][row + i]; },
                           [&](int64_t x) { return right[x] + column; }, 0, count);
        block.each([&](int i, int j, const Vector<Number>& sum) {
          Number* const to = at + i * stride + j * kStep;
          Vector<Number> old = load(to);
          if (kept) {
            if constexpr (of_rows)
              old *= kept[row + i];
            else
              old *= load(kept + column + j * kStep);
          }
          store(old + sum, to);
        });
      });
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
