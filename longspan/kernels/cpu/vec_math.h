// Functions of vectors of floats, without libm; see vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// e to the power of x, within 2 units in the last place. 0 below -86.9, where little is
// left that is not subnormal; infinity where it overflows; NaN for NaN.
[[maybe_unused]] inline Floats exp(const Floats& x) {
  using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
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

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
