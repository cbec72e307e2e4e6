#include "longspan/base/random.h"

#include <set>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Random, MixesEveryBitOfKeyAndNumber) {
  std::set<uint64_t> seen;
  for (uint64_t key = 0; key < 64; ++key)
    for (uint64_t number = 0; number < 64; ++number)
      seen.insert(mix(Key{key}, number).bits);
  EXPECT_EQ(seen.size(), 64u * 64u);
}

TEST(Random, LimitsWordsByProbability) {
  EXPECT_EQ(word_limit(0), 0u);
  EXPECT_EQ(word_limit(0.5), 1u << 31);
  EXPECT_EQ(word_limit(1), 4294967295u);
}

TEST(Draw, GivesEveryCallItsOwnKey) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (uint64_t step = 0; step < 3; ++step) {
      Draw draw(seed, step);
      for (int64_t layer = 0; layer < 3; ++layer) {
        draw.enter(layer);
        for (int call = 0; call < 3; ++call) seen.insert(draw.key().bits);
      }
    }
  }
  EXPECT_EQ(seen.size(), 81u);
}

TEST(Draw, RepeatsALayerThatIsRunAgain) {
  Draw draw(7, 11);
  draw.enter(2);
  const Key first = draw.key(), second = draw.key();
  draw.enter(3);
  draw.key();
  draw.enter(2);
  EXPECT_EQ(draw.key(), first);
  EXPECT_EQ(draw.key(), second);
}

}  // namespace
}  // namespace longspan::testing
