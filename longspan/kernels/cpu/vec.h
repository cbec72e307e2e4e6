// A vector of floats or doubles, as wide as the instruction set this file is compiled
// for. Arithmetic is the compiler's own: a * b + c (fused where there is an instruction
// for it), a < b ? a : b.
//
// Files that include it are compiled once per instruction set, each time into a
// namespace of its own. They may share no inline function with the rest of the library:
// the linker would keep one copy for all, perhaps one that an older CPU cannot run. So:
// pointers and sizes, no torch, no standard containers.

#pragma once

#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class Number>
constexpr int kLanesOf = kVectorBytes / static_cast<int>(sizeof(Number));
constexpr int kLanes = kLanesOf<float>;

template <class Number>
struct VectorOf {
  typedef Number Type __attribute__((vector_size(kVectorBytes)));
};
template <class Number>
using Vector = typename VectorOf<Number>::Type;

using Floats = Vector<float>;
using Doubles = Vector<double>;  // half as many
using Ints = Vector<int32_t>;
using Words = Vector<uint32_t>;

[[maybe_unused]] inline Floats broadcast(float value) { return value - Floats{}; }
[[maybe_unused]] inline Doubles broadcast(double value) { return value - Doubles{}; }

[[maybe_unused]] inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

[[maybe_unused]] inline Doubles load(const double* from) {
  Doubles x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

[[maybe_unused]] inline Ints load(const int32_t* from) {
  Ints x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// The first `count` from memory, 0 after them.
template <class Number>
[[gnu::always_inline]] inline Vector<Number> load(const Number* from, int64_t count) {
  if (count >= kLanesOf<Number>) return load(from);
  Vector<Number> x{};
  for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  return x;
}

[[maybe_unused]] inline void store(const Floats& x, float* to) {
  std::memcpy(to, &x, sizeof x);
}

[[maybe_unused]] inline void store(const Doubles& x, double* to) {
  std::memcpy(to, &x, sizeof x);
}

// Only the first `count`.
template <class Number>
[[gnu::always_inline]] inline void store(const Vector<Number>& x, Number* to,
                                         int64_t count) {
  if (count >= kLanesOf<Number>) return store(x, to);
  for (int64_t i = 0; i < count; ++i) to[i] = x[i];
}

// The first `count` of x, 0 after them.
[[maybe_unused]] inline Floats first(Floats x, int64_t count) {
  for (int64_t i = count; i < kLanes; ++i) x[i] = 0;
  return x;
}

#ifdef __AVX512F__
// Of the instructions without a mask, GCC 12 believes that they use what was never set.
constexpr __mmask16 kAllLanes = 0xffff;
#endif

// The larger of each; b where one is not a number.
[[maybe_unused]] inline Floats larger(const Floats& a, const Floats& b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(kAllLanes, a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

[[maybe_unused]] inline Doubles larger(const Doubles& a, const Doubles& b) {
  return a > b ? a : b;
}

// x in the lanes whose bit is set, `other` in the rest.
[[maybe_unused]] inline Floats select(uint64_t bits, const Floats& x,
                                      const Floats& other) {
#if defined(__AVX512F__)
  return _mm512_mask_mov_ps(other, static_cast<__mmask16>(bits), x);
#else
  Ints lane_bits;
  for (int i = 0; i < kLanes; ++i) lane_bits[i] = 1 << i;
  const Ints unset = (lane_bits & static_cast<int32_t>(bits)) == 0;
  return unset ? other : x;
#endif
}

[[maybe_unused]] inline Doubles select(uint64_t bits, const Doubles& x,
                                       const Doubles& other) {
#if defined(__AVX512F__)
  return _mm512_mask_mov_pd(other, static_cast<__mmask8>(bits), x);
#else
  Vector<int64_t> lane_bits;
  for (int i = 0; i < kLanesOf<double>; ++i) lane_bits[i] = int64_t{1} << i;
  const Vector<int64_t> unset = (lane_bits & static_cast<int64_t>(bits)) == 0;
  return unset ? other : x;
#endif
}

// A bit for each lane of a comparison.
[[maybe_unused]] inline uint64_t bits_of(const Ints& comparison) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(comparison));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(
      _mm256_movemask_ps(reinterpret_cast<__m256>(comparison)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(comparison)));
#else
  uint64_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint64_t{comparison[i] != 0} << i;
  return bits;
#endif
}

// The lower half of x (`half` 0) or the upper (1), exactly.
[[maybe_unused]] inline Doubles in_double(const Floats& x, int half) {
  using Half = float __attribute__((vector_size(kVectorBytes / 2)));
  Half halves[2];
  std::memcpy(halves, &x, sizeof x);
  return __builtin_convertvector(halves[half], Doubles);
}

[[maybe_unused]] inline double sum_in_double(const Doubles& x) {
  using Two = double __attribute__((vector_size(16)));
  Two parts[kLanesOf<double> / 2];
  std::memcpy(parts, &x, sizeof x);
  Two total{};
  for (const Two& part : parts) total += part;
  return total[0] + total[1];
}

[[maybe_unused]] inline double sum_in_double(const Floats& x) {
  return sum_in_double(in_double(x, 0) + in_double(x, 1));
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
