// Random numbers one after the other, for data of which nobody knows beforehand how
// many numbers it takes.

#pragma once

#include <array>
#include <cstdint>

#include "longspan/base/random.h"

namespace longspan {

class RandomWords {
 public:
  explicit RandomWords(Key key) : key_(key) {}

  uint32_t next() {
    if (at_ == 4) {
      words_ = philox(key_, {place_++, 0, 0, 0});
      at_ = 0;
    }
    return words_[at_++];
  }

  // 0 .. count - 1, all alike.
  uint32_t below(uint32_t count) {
    return static_cast<uint32_t>(uint64_t{next()} * count >> 32);
  }

  // In [0, 1).
  double share() { return static_cast<double>(next()) * 0x1p-32; }

 private:
  Key key_;
  uint32_t place_ = 0;
  int at_ = 4;
  std::array<uint32_t, 4> words_ = {};
};

}  // namespace longspan
