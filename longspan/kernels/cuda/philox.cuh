// The random words of ../../base/random.h on the device.

#pragma once

#include <cstdint>

#include "longspan/base/random.h"

namespace longspan::cuda {
namespace {

__device__ __forceinline__ void philox(uint64_t key, uint32_t (&words)[4]) {
  constexpr uint32_t kFactor0 = kPhiloxFactors[0], kFactor1 = kPhiloxFactors[1];
  constexpr uint32_t kStep0 = kPhiloxSteps[0], kStep1 = kPhiloxSteps[1];
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kFactor0} * words[0];
    const uint64_t b = uint64_t{kFactor1} * words[2];
    words[0] = static_cast<uint32_t>(b >> 32) ^ words[1] ^ key0;
    words[2] = static_cast<uint32_t>(a >> 32) ^ words[3] ^ key1;
    words[1] = static_cast<uint32_t>(b);
    words[3] = static_cast<uint32_t>(a);
    key0 += kStep0;
    key1 += kStep1;
  }
}

}  // namespace
}  // namespace longspan::cuda
