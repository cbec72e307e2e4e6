// Vectors of floats or doubles by one name, for kernels written once for both; see
// vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec.h"
#include "longspan/kernels/cpu/vec_math.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// The first `count` from memory, 0 after them.
template <class Number>
[[gnu::always_inline]] inline Vector<Number> load_some(const Number* from,
                                                       int64_t count) {
  if (count >= kLanesOf<Number>) return load(from);
  Vector<Number> x{};
  for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  return x;
}

// Only the first `count`.
template <class Number>
[[gnu::always_inline]] inline void store_some(const Vector<Number>& x, Number* to,
                                              int64_t count) {
  if (count >= kLanesOf<Number>) return store(x, to);
  for (int64_t i = 0; i < count; ++i) to[i] = x[i];
}

// Past the caches, for results much larger than they are; `to` must be aligned like a
// vector. Other threads see it after flush_stores().
template <class Number>
[[gnu::always_inline]] inline void store_past_caches(const Vector<Number>& x,
                                                     Number* to) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(x));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(x));
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(x));
#else
  store(x, to);
#endif
}

[[maybe_unused]] inline void flush_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Every row of `width` numbers, densely packed from `first` on, begins like a vector.
template <class Number>
bool has_aligned_rows(const Number* first, int64_t width) {
  return reinterpret_cast<uintptr_t>(first) % kVectorBytes == 0 &&
         width % kLanesOf<Number> == 0;
}

// Doubles from numbers of any kind in memory, exactly: the first `count`, then 0.
[[maybe_unused, gnu::always_inline]] inline Doubles load_double(const float* from,
                                                                int64_t count) {
  using Half = float __attribute__((vector_size(kVectorBytes / 2)));
  Half x{};
  if (count >= kLanesOf<double>) {
    std::memcpy(&x, from, sizeof x);
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  }
  return __builtin_convertvector(x, Doubles);
}

[[maybe_unused, gnu::always_inline]] inline Doubles load_double(const double* from,
                                                                int64_t count) {
  return load_some(from, count);
}

// Doubles to numbers of any kind in memory, rounded: the first `count`.
template <class Number>
[[gnu::always_inline]] inline void store_rounded(const Doubles& x, Number* to,
                                                 int64_t count) {
  typedef Number Rounded
      __attribute__((vector_size(kLanesOf<double> * sizeof(Number))));
  const Rounded rounded = __builtin_convertvector(x, Rounded);
  if (count >= kLanesOf<double>) {
    std::memcpy(to, &rounded, sizeof rounded);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = rounded[i];
  }
}

[[maybe_unused]] inline double sum_in_double(const Doubles& x) {
  using Two = double __attribute__((vector_size(16)));
  Two parts[kLanesOf<double> / 2];
  std::memcpy(parts, &x, sizeof x);
  Two total{};
  for (const Two& part : parts) total += part;
  return total[0] + total[1];
}

// The sum of a[i] * b[i].
template <class Number>
double dot(const Number* a, const Number* b, int64_t size) {
  constexpr int kChains = 4;  // sums that do not wait for each other
  constexpr int kStep = kLanesOf<Number>;
  Vector<Number> sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kStep <= size; i += kChains * kStep)
    for (int chain = 0; chain < kChains; ++chain)
      sums[chain] += load(a + i + chain * kStep) * load(b + i + chain * kStep);
  for (int chain = 0; i < size; i += kStep, ++chain)
    sums[chain] += load_some(a + i, size - i) * load_some(b + i, size - i);
  return sum_in_double((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Doubles serve checks of gradients: the functions of libm will do.
[[maybe_unused]] inline Doubles exp(Doubles x) {
  for (int i = 0; i < kLanesOf<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

[[maybe_unused]] inline Doubles log(Doubles x) {
  for (int i = 0; i < kLanesOf<double>; ++i) x[i] = __builtin_log(x[i]);
  return x;
}

// The natural logarithm of normal numbers above 0, within 1 unit in the last place; NaN
// for NaN.
[[maybe_unused]] inline Floats log(const Floats& x) {
  // log(2), its first part so short that a whole number of them is exact.
  constexpr float kLog2 = 0x1.62ep-1f, kRestOfLog2 = 3.194618495e-5f;
  constexpr uint32_t kLowest = 0x3f3504f3;  // the bits of sqrt(1/2)

  // x = 2^power * (1 + f), with 1 + f between sqrt(1/2) and sqrt(2).
  Words bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits -= kLowest;
  Ints exponent;
  std::memcpy(&exponent, &bits, sizeof exponent);
  const Floats power = __builtin_convertvector(exponent >> 23, Floats);
  bits = (bits & 0x7fffff) + kLowest;
  Floats f;
  std::memcpy(&f, &bits, sizeof f);
  f -= 1.0f;

  // log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = f / (2 + f), at most 0.172;
  // and 2 s = f - s f, of which f is exact.
  const Floats s = f / (f + 2.0f);
  const Floats square = s * s;
  Floats rest = broadcast(2.0f / 9);
  rest = rest * square + 2.0f / 7;
  rest = rest * square + 2.0f / 5;
  rest = rest * square + 2.0f / 3;
  const Floats result =
      power * kLog2 + (f - (s * (f - square * rest) - power * kRestOfLog2));
  return x == x ? result : x;
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
