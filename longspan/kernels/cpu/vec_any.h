// Vectors of floats or doubles by one name, for kernels written once for both; see
// vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

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
  return load(from, count);
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

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
