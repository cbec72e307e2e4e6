// Counter-based random numbers: a number is a function of a key and of the place it is
// used at, so that any order of work, any tiling, any thread and any repetition of a
// forward pass see the same one.

#pragma once

#include <array>
#include <cstdint>

namespace longspan {

// Chooses one stream of random numbers.
struct Key {
  uint64_t bits = 0;

  bool operator==(const Key&) const = default;
};

// Another key, that depends on all of `key` and `number`. (The finaliser of
// splitmix64.)
constexpr Key mix(Key key, uint64_t number) {
  uint64_t x = key.bits + 0x9e3779b97f4a7c15 + number * 0xd1342543de82ef95;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return {x ^ (x >> 31)};
}

// The numbers of Philox4x32.
inline constexpr int kPhiloxRounds = 7;
inline constexpr uint32_t kPhiloxFactors[] = {0xd2511f53, 0xcd9e8d57};
inline constexpr uint32_t kPhiloxSteps[] = {0x9e3779b9, 0xbb67ae85};  // of the key

// Four random 32-bit words for the place `counter`: Philox4x32 with 7 rounds, the
// fewest that pass BigCrush (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3").
constexpr std::array<uint32_t, 4> philox(Key key, std::array<uint32_t, 4> counter) {
  auto k0 = static_cast<uint32_t>(key.bits), k1 = static_cast<uint32_t>(key.bits >> 32);
  auto [c0, c1, c2, c3] = counter;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxFactors[0]} * c0;
    const uint64_t b = uint64_t{kPhiloxFactors[1]} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    k0 += kPhiloxSteps[0];
    k1 += kPhiloxSteps[1];
  }
  return {c0, c1, c2, c3};
}

// A random word below this one, out of 2^32, has the given probability.
constexpr uint32_t word_limit(double probability) {
  const double limit = probability * 4294967296.0 + 0.5;
  return limit >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(limit);
}

// The random draws of one pass through a model. The model sets the layer before each
// layer; a layer that is run again with the same seed, step and layer draws the same.
class Draw {
 public:
  Draw() = default;
  explicit Draw(uint64_t seed, uint64_t step = 0) : seed_(seed), step_(step) {}

  uint64_t step() const { return step_; }

  void enter(int64_t layer) {
    layer_ = static_cast<uint64_t>(layer);
    calls_ = 0;
  }

  // A key no other call of this pass gets.
  Key key() { return mix(mix(mix(Key{seed_}, step_), layer_), calls_++); }

 private:
  uint64_t seed_ = 0, step_ = 0, layer_ = 0, calls_ = 0;
};

}  // namespace longspan
