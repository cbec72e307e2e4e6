// A vector of floats, as wide as the instruction set this file is compiled for.
// Arithmetic is the compiler's own: a * b + c (fused where there is an instruction for
// it), a < b ? a : b.
//
// Files that include it are compiled once per instruction set, each time into a
// namespace of its own. They may share no inline function with the rest of the library:
// the linker would keep one copy for all, perhaps one that an older CPU cannot run. So:
// pointers and sizes, no torch, no standard containers.

#pragma once

#include <cstdint>
#include <cstring>

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Doubles = double __attribute__((vector_size(4 * kLanes)));  // half as many

[[maybe_unused]] inline Floats broadcast(float value) { return Floats{} + value; }

[[maybe_unused]] inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// The first `count` from memory, 0 after them.
[[maybe_unused]] inline Floats load(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Floats x{};
  for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  return x;
}

[[maybe_unused]] inline void store(const Floats& x, float* to) {
  std::memcpy(to, &x, sizeof x);
}

// Only the first `count`.
[[maybe_unused]] inline void store(const Floats& x, float* to, int64_t count) {
  if (count >= kLanes) return store(x, to);
  for (int64_t i = 0; i < count; ++i) to[i] = x[i];
}

// The first `count` of x, 0 after them.
[[maybe_unused]] inline Floats first(Floats x, int64_t count) {
  for (int64_t i = count; i < kLanes; ++i) x[i] = 0;
  return x;
}

// The lower half of x (`half` 0) or the upper (1), exactly.
[[maybe_unused]] inline Doubles in_double(const Floats& x, int half) {
  using Half = float __attribute__((vector_size(2 * kLanes)));
  Half halves[2];
  std::memcpy(halves, &x, sizeof x);
  return __builtin_convertvector(halves[half], Doubles);
}

[[maybe_unused]] inline double sum_in_double(const Floats& x) {
  using Two = double __attribute__((vector_size(16)));
  const Doubles pairs = in_double(x, 0) + in_double(x, 1);
  Two parts[kLanes / 4];
  std::memcpy(parts, &pairs, sizeof pairs);
  Two total{};
  for (const Two& part : parts) total += part;
  return total[0] + total[1];
}

[[maybe_unused]] inline Doubles load(const double* from) {
  Doubles x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

[[maybe_unused]] inline void store(const Doubles& x, double* to) {
  std::memcpy(to, &x, sizeof x);
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
