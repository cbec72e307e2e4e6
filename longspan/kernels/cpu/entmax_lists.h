// Lists of keys that may have a weight under entmax, and sums over them; see vec.h for
// who may include this.
//
// With e = alpha - 1 the weight of a score s is
//   (reach - gap)^(1 / e) where gap = e * (largest score - s) < reach, else 0,
// and `reach`, in (0, 1], makes the weights of a query sum to 1.

#pragma once

#include "longspan/kernels/cpu/vec_math.h"
#include "longspan/kernels/cpu/vec_tile.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// A bit for each lane that is above the limit, or at least the limit, or not a number.
[[gnu::always_inline]] inline uint64_t above(const Floats& x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x, broadcast(limit), _CMP_NLE_UQ);
#else
  return bits_of(~(x <= limit));
#endif
}

[[gnu::always_inline]] inline uint64_t not_below(const Floats& x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x, broadcast(limit), _CMP_NLT_UQ);
#else
  return bits_of(~(x < limit));
#endif
}

// Doubles serve checks of gradients: plain loops will do.
[[gnu::always_inline]] inline uint64_t above(const Doubles& x, double limit) {
  uint64_t bits = 0;
  for (int lane = 0; lane < kLanesOf<double>; ++lane)
    bits |= uint64_t{!(x[lane] <= limit)} << lane;
  return bits;
}

[[gnu::always_inline]] inline uint64_t not_below(const Doubles& x, double limit) {
  uint64_t bits = 0;
  for (int lane = 0; lane < kLanesOf<double>; ++lane)
    bits |= uint64_t{!(x[lane] < limit)} << lane;
  return bits;
}

template <class Number>
constexpr uint64_t kAll = (uint64_t{1} << kLanesOf<Number>)-1;

// The lanes of x whose bit is set, side by side, with their columns. Writes whole
// vectors; returns how many there are.
[[gnu::always_inline]] inline int64_t pack(uint64_t bits, const Floats& x,
                                           const int32_t* columns, float* to,
                                           int32_t* to_columns) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>(bits);
  const Floats some = _mm512_maskz_compress_ps(mask, x);
  const __m512i numbers =
      _mm512_maskz_compress_epi32(mask, reinterpret_cast<__m512i>(load(columns)));
  std::memcpy(to, &some, sizeof some);
  std::memcpy(to_columns, &numbers, sizeof numbers);
  return __builtin_popcountll(bits);
#else
  int64_t count = 0;
  for (; bits != 0; bits &= bits - 1, ++count) {
    const int lane = __builtin_ctzll(bits);
    to[count] = x[lane];
    to_columns[count] = columns[lane];
  }
  return count;
#endif
}

[[gnu::always_inline]] inline int64_t pack(uint64_t bits, const Doubles& x,
                                           const int32_t* columns, double* to,
                                           int32_t* to_columns) {
  int64_t count = 0;
  for (; bits != 0; bits &= bits - 1, ++count) {
    const int lane = __builtin_ctzll(bits);
    to[count] = x[lane];
    to_columns[count] = columns[lane];
  }
  return count;
}

// Some keys of a query, ascending by column, and a number of each. There is room for a
// vector after the last.
template <class Number>
struct KeyList {
  Number* numbers = nullptr;
  int32_t* columns = nullptr;
  int64_t count = 0;

  // Makes the vector after the last `value`.
  void close(Number value) {
    for (int64_t i = 0; i < kLanesOf<Number>; ++i) {
      numbers[count + i] = value;
      columns[count + i] = 0;
    }
  }
};

// u to the powers 1 / e and 1 / e - 1, for e = 1, 1/2 and any other; both 0 where u is
// not above 0.
template <class Number>
struct Linear {
  [[gnu::always_inline]] void operator()(const Vector<Number>& u,
                                         Vector<Number>& weight,
                                         Vector<Number>& slope) const {
    weight = u > 0 ? u : Vector<Number>{};
    slope = u > 0 ? broadcast(Number{1}) : Vector<Number>{};
  }
};

template <class Number>
struct Square {
  [[gnu::always_inline]] void operator()(const Vector<Number>& u,
                                         Vector<Number>& weight,
                                         Vector<Number>& slope) const {
    slope = u > 0 ? u : Vector<Number>{};
    weight = slope * slope;
  }
};

template <class Number>
struct Power {
  Number exponent;

  [[gnu::always_inline]] void operator()(const Vector<Number>& u,
                                         Vector<Number>& weight,
                                         Vector<Number>& slope) const {
    const Vector<Number> base = u > 0 ? u : broadcast(Number{1});
    const Vector<Number> power = exp(log(base) * exponent);
    weight = u > 0 ? power : Vector<Number>{};
    slope = weight / base;
  }
};

// A sum in vectors, that goes to a double before it is so long that rounding shows.
template <class Number>
class LongSum {
 public:
  [[gnu::always_inline]] void add(const Vector<Number>& x) { some_ += x; }
  [[gnu::always_inline]] void settle() {
    all_ += sum_in_double(some_);
    some_ = Vector<Number>{};
  }
  double total() const { return all_; }

 private:
  Vector<Number> some_{};
  double all_ = 0;
};

struct Sums {
  double weights = 0, slopes = 0;
};

// step(i) for the vectors of a list, settle() after some of them.
template <class Number, class Step, class Settle>
[[gnu::always_inline]] inline void along(int64_t count, const Step& step,
                                         const Settle& settle) {
  constexpr int64_t kBetween = 32 * kLanesOf<Number>;
  for (int64_t from = 0; from < count; from += kBetween) {
    const int64_t to = from + kBetween < count ? from + kBetween : count;
    for (int64_t i = from; i < to; i += kLanesOf<Number>) step(i);
    settle();
  }
}

// The sums of a list of gaps under `reach`. Those that do not reach leave the list; the
// others have their weights in `weights`.
template <class Number, class Curve>
Sums weigh(KeyList<Number>& gaps, Number reach, const Curve& curve, Number* weights) {
  LongSum<Number> sum, slope_sum;
  int64_t kept = 0;
  along<Number>(
      gaps.count,
      [&](int64_t i) {
        const Vector<Number> gap = load(gaps.numbers + i), u = reach - gap;
        Vector<Number> weight, slope;
        curve(u, weight, slope);
        sum.add(weight);
        slope_sum.add(slope);
        const uint64_t bits = above(u, Number{0});
        if (bits == 0) return;
        if (bits == kAll<Number> && kept == i) {
          store(weight, weights + i);
          kept += kLanesOf<Number>;
          return;
        }
        pack(bits, weight, gaps.columns + i, weights + kept, gaps.columns + kept);
        int32_t unused[kLanesOf<float>];
        kept += pack(bits, gap, gaps.columns + i, gaps.numbers + kept, unused);
      },
      [&] {
        sum.settle();
        slope_sum.settle();
      });
  gaps.count = kept;
  gaps.close(2);
  return {sum.total(), slope_sum.total()};
}

template <class Number>
constexpr double kRounding = sizeof(Number) == sizeof(float) ? 0x1p-23 : 0x1p-52;

struct Level {
  double reach = 1, sum = 1;  // of the weights
};

// The reach with which the weights of a list of gaps sum to 1, from a start that is not
// below it, by Newton's method: the norm (sum of weights)^e of what reaches is convex
// in `reach`, so that no step goes too far. The list keeps what has a weight, in
// `weights`.
template <class Number, class Curve>
Level solve(KeyList<Number>& gaps, Number start, double e, const Curve& curve,
            Number* weights) {
  constexpr int kMostSteps = 100;
  Number reach = start;
  double before = 0;
  for (int i = 0;; ++i) {
    const Sums sums = weigh(gaps, reach, curve, weights);
    const double norm = __builtin_pow(sums.weights, e);
    const double step = (1 - 1 / norm) * sums.weights / sums.slopes;
    const Number next = static_cast<Number>(reach - step);
    const bool is_there = !(step > 8 * kRounding<Number> * reach) || next >= reach;
    const bool is_stuck = before > 0 && step > before / 2 && step < 1e-4 * reach;
    if (is_there || is_stuck || i == kMostSteps) return {reach, sums.weights};
    reach = next;
    before = step;
  }
}

// sums += factor * row for `vectors` vectors of each key of a list.
template <int vectors, class Number, class Row>
[[gnu::always_inline]] inline void add_rows(const Number* factors,
                                            const int32_t* columns, int64_t count,
                                            const Row& row, Number* sums) {
  constexpr int kStep = kLanesOf<Number>;
  Vector<Number> even[vectors], odd[vectors];
  for (int j = 0; j < vectors; ++j) {
    even[j] = load(sums + j * kStep);
    odd[j] = Vector<Number>{};
  }
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const Number *const a = row(columns[i]), *const b = row(columns[i + 1]);
    for (int j = 0; j < vectors; ++j) {
      even[j] += factors[i] * load(a + j * kStep);
      odd[j] += factors[i + 1] * load(b + j * kStep);
    }
  }
  if (i < count) {
    const Number* const a = row(columns[i]);
    for (int j = 0; j < vectors; ++j) even[j] += factors[i] * load(a + j * kStep);
  }
  for (int j = 0; j < vectors; ++j) store(even[j] + odd[j], sums + j * kStep);
}

// to(column) += factor * row.
template <int vectors, class Number, class To>
[[gnu::always_inline]] inline void add_to_rows(const Number* factors,
                                               const int32_t* columns, int64_t count,
                                               const Number* row, const To& to) {
  constexpr int kStep = kLanesOf<Number>;
  Vector<Number> all[vectors];
  for (int j = 0; j < vectors; ++j) all[j] = load(row + j * kStep);
  for (int64_t i = 0; i < count; ++i) {
    Number* const place = to(columns[i]);
    for (int j = 0; j < vectors; ++j)
      store(load(place + j * kStep) + factors[i] * all[j], place + j * kStep);
  }
}

// products[i] += row . row(column).
template <int vectors, class Number, class Row>
[[gnu::always_inline]] inline void add_dots(const int32_t* columns, int64_t count,
                                            const Number* row, const Row& other,
                                            Number* products) {
  constexpr int kStep = kLanesOf<Number>;
  Vector<Number> all[vectors];
  for (int j = 0; j < vectors; ++j) all[j] = load(row + j * kStep);
  for (int64_t i = 0; i < count; ++i) {
    const Number* const place = other(columns[i]);
    Vector<Number> sum = all[0] * load(place);
    for (int j = 1; j < vectors; ++j) sum += all[j] * load(place + j * kStep);
    products[i] += sum_of<Number>(sum);
  }
}

// work.operator()<vectors>(from) for parts of a row `width` numbers wide, a multiple of
// kPadding.
template <class Number, class Work>
[[gnu::always_inline]] inline void each_part(int64_t width, const Work& work) {
  constexpr int kStep = kLanesOf<Number>;
  int64_t from = 0;
  for (; from + 4 * kStep <= width; from += 4 * kStep)
    work.template operator()<4>(from);
  for (; from < width; from += kStep) work.template operator()<1>(from);
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
