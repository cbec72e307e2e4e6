// Random words in vectors; see vec.h for who may include this.

#pragma once

#include "longspan/kernels/cpu/vec.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

using LongWords = Vector<uint64_t>;

// The products of the words in the lower halves.
inline LongWords low_products(const LongWords& a, const LongWords& b) {
#if defined(__AVX512F__)
  return reinterpret_cast<LongWords>(_mm512_maskz_mul_epu32(
      0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<LongWords>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<LongWords>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

struct Products {
  Words high, low;
};

inline Products products(const Words& words, uint32_t factor) {
  constexpr uint64_t kLow = 0xffffffff;
  const auto pairs = reinterpret_cast<LongWords>(words);
  const LongWords factors = uint64_t{factor} - LongWords{};
  const LongWords even = low_products(pairs, factors);
  const LongWords odd = low_products(pairs >> 32, factors);
  return {reinterpret_cast<Words>((even >> 32) | (odd & ~kLow)),
          reinterpret_cast<Words>((even & kLow) | (odd << 32))};
}

// philox() of base/random.h, lane by lane: counters become random words.
[[maybe_unused]] inline void philox(uint64_t key, Words (&c)[4]) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
    const Products a = products(c[0], 0xd2511f53), b = products(c[2], 0xcd9e8d57);
    c[0] = b.high ^ c[1] ^ k0;
    c[1] = b.low;
    c[2] = a.high ^ c[3] ^ k1;
    c[3] = a.low;
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
