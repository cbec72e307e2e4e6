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

TEST(Words, FindsTheNearestName) {
  const std::vector<std::string> known = {"dense", "local", "linear", "a"};
  const std::pair<const char*, const char*> cases[] = {
      {"dense", "dense"}, {"dens", "dense"},  {"densse", "dense"},  {"denze", "dense"},
      {"edn", ""},        {"loacl", "local"}, {"linaer", "linear"}, {"b", "a"},
      {"", "a"},          {"lnr", ""},        {"lineal", "linear"}};
  for (const auto& [unknown, meant] : cases)
    EXPECT_EQ(nearest(unknown, known), meant) << unknown;
  EXPECT_EQ(nearest("dense", {}), "");
  EXPECT_EQ(nearest("cat", {"bat", "hat"}), "bat");
}

TEST(Words, SplitsChoices) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(split_choices(""), Names{});
  EXPECT_EQ(split_choices("max"), Names{"max"});
  EXPECT_EQ(split_choices("max|mean|first token"),
            (Names{"max", "mean", "first token"}));
}

}  // namespace
}  // namespace longspan::testing
