#include "longspan/kernels/random_numbers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/Parallel.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/kernels/random_numbers_cuda.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kWord = 0xffffffff;

struct Product {
  Tensor high, low;  // words
};

// `factor` * `words`, in halves of 16 bits because the product has 64 bits and int64
// only 63.
Product multiply(int64_t factor, const Tensor& words) {
  const Tensor upper = words * (factor >> 16), lower = words * (factor & 0xffff);
  return {.high = (upper + lower.bitwise_right_shift(16)).bitwise_right_shift(16),
          .low = (upper.bitwise_and(0xffff).bitwise_left_shift(16) + lower)
                     .bitwise_and(kWord)};
}

constexpr int64_t kLanes = 16;  // places at once, in loops that become vectors

void fill_lanes(Key key, uint64_t first, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes] = {}, c3[kLanes] = {};
  for (int64_t i = 0; i < kLanes; ++i) {
    c0[i] = static_cast<uint32_t>(first + i);
    c1[i] = static_cast<uint32_t>((first + i) >> 32);
  }
  auto k0 = static_cast<uint32_t>(key.bits), k1 = static_cast<uint32_t>(key.bits >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t a = uint64_t{kPhiloxFactors[0]} * c0[i];
      const uint64_t b = uint64_t{kPhiloxFactors[1]} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(b);
      c3[i] = static_cast<uint32_t>(a);
    }
    k0 += kPhiloxSteps[0];
    k1 += kPhiloxSteps[1];
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

Tensor random_words_cpu(Key key, at::IntArrayRef shape) {
  constexpr int64_t kWorthAThread = 1 << 13;  // places
  Tensor result = torch::empty(shape, torch::kLong);
  auto* words = result.data_ptr<int64_t>();
  const int64_t count = result.numel();
  at::parallel_for(0, (count + 3) / 4, kWorthAThread, [&](int64_t begin, int64_t end) {
    uint32_t some[4 * kLanes];
    for (int64_t place = begin; place < end; place += kLanes) {
      const int64_t places = std::min(kLanes, end - place);
      fill_words(key, static_cast<uint64_t>(place), places, some);
      std::copy_n(some, std::min(4 * places, count - 4 * place), words + 4 * place);
    }
  });
  return result;
}

}  // namespace

void fill_words(Key key, uint64_t first, int64_t count, uint32_t* words) {
  int64_t done = 0;
  for (; done + kLanes <= count; done += kLanes)
    fill_lanes(key, first + done, words + 4 * done);
  for (; done < count; ++done) {
    const auto four = words_at(key, first + done);
    std::copy(four.begin(), four.end(), words + 4 * done);
  }
}

Tensor philox_words(Key key, const Tensor& c0, const Tensor& c1, const Tensor& c2,
                    const Tensor& c3) {
  for (const Tensor& counter : {c0, c1, c2, c3})
    require(counter.scalar_type() == torch::kLong,
            "philox words: counters must be int64, got ", counter.scalar_type());
  auto counters = torch::broadcast_tensors({c0, c1, c2, c3});
  if constexpr (kHasCuda) {
    const auto lies_there = [&](const Tensor& x) { return x.device() == c0.device(); };
    if (c0.is_cuda() && std::ranges::all_of(counters, lies_there))
      return philox_words_cuda(key, counters);
  }
  auto k0 = static_cast<uint32_t>(key.bits), k1 = static_cast<uint32_t>(key.bits >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Product a = multiply(kPhiloxFactors[0], counters[0]);
    const Product b = multiply(kPhiloxFactors[1], counters[2]);
    counters = {
        b.high.bitwise_xor(counters[1]).bitwise_xor(static_cast<int64_t>(k0)), b.low,
        a.high.bitwise_xor(counters[3]).bitwise_xor(static_cast<int64_t>(k1)), a.low};
    k0 += kPhiloxSteps[0];
    k1 += kPhiloxSteps[1];
  }
  return torch::stack(counters, -1);
}

Tensor random_words(Key key, at::IntArrayRef shape, torch::Device device) {
  if (device.is_cpu()) return random_words_cpu(key, shape);
  if constexpr (kHasCuda)
    if (device.is_cuda()) return random_words_cuda(key, shape, device);
  const int64_t count =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const auto options = torch::TensorOptions(torch::kLong).device(device);
  const Tensor place = torch::arange((count + 3) / 4, options);
  const Tensor zero = torch::zeros({1}, options);
  return philox_words(key, place.bitwise_and(kWord), place.bitwise_right_shift(32),
                      zero, zero)
      .flatten()
      .slice(0, 0, count)
      .reshape(shape);
}

Tensor uniform(Key key, at::IntArrayRef shape, const torch::TensorOptions& options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  int bits = 0;
  switch (dtype) {
    case torch::kDouble: bits = 32; break;
    case torch::kFloat: bits = 24; break;
    case torch::kHalf: bits = 11; break;
    case torch::kBFloat16: bits = 8; break;
    default: fail("uniform: the type must be a floating one, got ", dtype);
  }
  const Tensor words = random_words(key, shape, options.device());
  return words.bitwise_right_shift(32 - bits).to(dtype).mul_(std::ldexp(1.0, -bits));
}

}  // namespace longspan
