#include "longspan/base/words.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Words, JoinsWithASeparator) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"dense"}), "dense");
  EXPECT_EQ(joined({"dense", "local"}, " | "), "dense | local");
}

TEST(Words, HintsAtTheNearestName) {
  const std::vector<std::string> known = {"dense", "local", "linear"};
  EXPECT_EQ(hint("lokal", known),
            "; did you mean 'local'? there are: dense, local, linear");
  EXPECT_EQ(hint("desne", known),
            "; did you mean 'dense'? there are: dense, local, linear");
  EXPECT_EQ(hint("performer", known), "; there are: dense, local, linear");
  EXPECT_EQ(hint("dense", {}), "; there are none");
}

}  // namespace
}  // namespace longspan::testing
