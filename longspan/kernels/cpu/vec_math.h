// Functions of vectors, those of floats without libm; see vec.h for who may include
// this.

#pragma once

#include "longspan/kernels/cpu/vec.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// e to the power of x, within 2 units in the last place. 0 below -86.9, where little is
// left that is not subnormal; infinity where it overflows; NaN for NaN.
[[maybe_unused]] inline Floats exp(const Floats& x) {
  constexpr float kLowest = -86.9f, kHighest = 88.8f;
  constexpr float kToPowersOf2 = 1.44269504f;
  // Added, it leaves the nearest whole number in the lowest bits.
  constexpr float kRounder = 0x1.8p23f;
  // log(2), its first part so short that a whole number of them is exact.
  constexpr float kLog2 = 0x1.62ep-1f, kRestOfLog2 = 3.194618495e-5f;

  const Floats rounded = x * kToPowersOf2 + kRounder;
  const Floats power = rounded - kRounder;
  const Floats r = (x - power * kLog2) - power * kRestOfLog2;

  // 2 e^r for r within log(2) / 2 of 0: 2 + 2 r + r^2 times a polynomial of smallest
  // largest error, 3e-9 of the result. Doubled, because 2^128 is no float.
  Floats p = broadcast(0.00276292012f);
  p = p * r + 0.0167374338f;
  p = p * r + 0.083336776f;
  p = p * r + 0.333330413f;
  p = p * r + 0.999999869f;
  p = p * r + 2.0f;
  p = p * r + 2.0f;

  // 2^(power - 1), in the bits of its exponent.
  Words bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits << 23) + (126u << 23);
  Floats scale;
  std::memcpy(&scale, &bits, sizeof scale);

  const Floats result = x > kHighest ? broadcast(__builtin_inff()) : p * scale;
  return x < kLowest ? Floats{} : result;
}

// Doubles serve checks of gradients: the functions of libm will do.
[[maybe_unused]] inline Doubles exp(Doubles x) {
  for (int i = 0; i < kLanesOf<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// 2 to the power of x for x <= 127, within 2 units in the last place, and 1 exactly at
// 0. 0 where the result would be subnormal, or nearly so; NaN for NaN.
[[maybe_unused, gnu::always_inline]] inline Floats exp2(const Floats& x) {
#ifdef __AVX512F__
  const Floats bounded = larger(broadcast(-160.0f), x);
  const Floats power =
      _mm512_maskz_roundscale_ps(kAllLanes, bounded, _MM_FROUND_TO_NEAREST_INT);
  const Floats r = bounded - power;
#else
  constexpr float kRounder = 0x1.8p23f;  // leaves the whole number in the lowest bits
  const Floats rounded = x + kRounder;
  const Floats r = x - (rounded - kRounder);
#endif
  // A polynomial of smallest largest error, 8e-8 of the result.
  Floats p = broadcast(0.000153458122f);
  p = p * r + 0.00133999312f;
  p = p * r + 0.00961848896f;
  p = p * r + 0.0555032878f;
  p = p * r + 0.240226469f;
  p = p * r + 0.693147206f;
  p = p * r + 1.0f;
#ifdef __AVX512F__
  return _mm512_maskz_scalef_ps(kAllLanes, p, power);
#else
  Words bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits << 23) + (127u << 23);
  Floats scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -125.5f ? Floats{} : p * scale;
#endif
}

// The same for doubles.
[[maybe_unused, gnu::always_inline]] inline Doubles exp2(const Doubles& x) {
  constexpr double kLowest = -1021.5, kRounder = 0x1.8p52;
  const Doubles rounded = x + kRounder;
  const Doubles r = (x - (rounded - kRounder)) * 0.693147180559945309;
  // The series of e^r; r is within log(2) / 2 of 0, so that the rest is below 5e-18.
  Doubles p = broadcast(1.0);
  for (int n = 13; n > 0; --n) p = p * r * (1.0 / n) + 1.0;
  Vector<uint64_t> bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits << 52) + (uint64_t{1023} << 52);
  Doubles scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < kLowest ? Doubles{} : p * scale;
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

[[maybe_unused]] inline Doubles log(Doubles x) {
  for (int i = 0; i < kLanesOf<double>; ++i) x[i] = __builtin_log(x[i]);
  return x;
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
