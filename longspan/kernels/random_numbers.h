// Random numbers as tensors. Word w of a key is word w & 3 of philox() at the place
// w >> 2, so that all devices, and code that draws one at a time, see the same.

#pragma once

#include <array>
#include <cstdint>

#include <torch/types.h>

#include "longspan/base/random.h"

namespace longspan {

// Words 4 * place .. 4 * place + 3 of `key`.
constexpr std::array<uint32_t, 4> words_at(Key key, uint64_t place) {
  return philox(
      key, {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), 0, 0});
}

// words_at() for `count` places from `first` on: 4 * count words. Several times as
// quick as one at a time.
void fill_words(Key key, uint64_t first, int64_t count, uint32_t* words);

// philox() at many places, in tensor operations but for CUDA, where it is one kernel.
// The counters are int64, of one shape after broadcasting, and hold words, 0 .. 2^32 -
// 1. Returns [..., 4] words, int64.
torch::Tensor philox_words(Key key, const torch::Tensor& c0, const torch::Tensor& c1,
                           const torch::Tensor& c2, const torch::Tensor& c3);

// The first words of `key` in the order of a contiguous tensor: int64, 0 .. 2^32 - 1.
torch::Tensor random_words(Key key, at::IntArrayRef shape,
                           torch::Device device = torch::kCPU);

// Numbers of [0, 1), evenly spread: the upper bits of random_words(), as many as the
// type can hold.
torch::Tensor uniform(Key key, at::IntArrayRef shape,
                      const torch::TensorOptions& options = torch::kFloat);

}  // namespace longspan
