#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

// [tokens, tokens]: who sees whom, by keys that are alike and values that are not.
Tensor seen(const std::string& settings, int64_t tokens, bool causal) {
  const auto alike = torch::zeros({1, 1, tokens, 8});
  const auto own = torch::eye(tokens).view({1, 1, tokens, tokens});
  Pass pass = pass_of(causal);
  return made(catalogue::logsparse, settings)->forward(alike, alike, own, pass)[0][0] >
         0;
}

Tensor keys(const std::string& settings, int64_t query, bool causal) {
  return seen(settings, 40, causal)[query].nonzero().view(-1);
}

TEST(LogSparse, SeesTheLastTokenOfEverySpanBefore) {
  EXPECT_TRUE(keys("{}", 0, true).equal(torch::tensor({0})));
  EXPECT_TRUE(keys("{}", 22, true).equal(torch::tensor({15, 19, 21, 22})));
  EXPECT_TRUE(keys("{}", 31, true).equal(torch::tensor({15, 23, 27, 29, 30, 31})));
  EXPECT_TRUE(keys("{}", 32, true).equal(torch::tensor({31, 32})));
}

TEST(LogSparse, SeesTheMirrorImageAhead) {
  EXPECT_TRUE(keys("{}", 22, false).equal(torch::tensor({15, 19, 21, 22, 23, 24, 32})));
  const auto past = seen("{}", 64, true);
  EXPECT_TRUE(seen("{}", 64, false).equal(past.logical_or(past.flip({0, 1}))));
  EXPECT_TRUE(seen("{}", 64, false)
                  .slice(0, 0, 41)
                  .slice(1, 0, 41)
                  .equal(seen("{}", 41, false)));
}

TEST(LogSparse, SeesItsNeighboursAsWell) {
  EXPECT_TRUE(keys("{window: 2}", 22, true).equal(torch::tensor({15, 19, 20, 21, 22})));
}

TEST(LogSparse, BeginsAnewInEveryPiece) {
  EXPECT_TRUE(keys("{restart: 8}", 22, true)
                  .equal(torch::tensor({3, 5, 6, 11, 13, 14, 19, 21, 22})));
  EXPECT_TRUE(
      keys("{restart: 8}", 22, false)
          .equal(torch::tensor({3, 5, 6, 11, 13, 14, 19, 21, 22, 23, 30, 31, 38, 39})));
  EXPECT_TRUE(keys("{restart: 8, window: 1}", 16, true)
                  .equal(torch::tensor({0, 7, 8, 15, 16})));
  EXPECT_TRUE(seen("{restart: 64}", 40, false).equal(seen("{}", 40, false)));
}

TEST(LogSparse, IsDenseBitForBitWhenItSeesAll) {
  const auto x = random_tensors(3, {2, 2, 150, 8}, torch::kFloat);
  for (const bool causal : {false, true})
    for (const char* settings : {"{window: 150}", "{restart: 1}"}) {
      Pass one = pass_of(causal), other = pass_of(causal);
      EXPECT_TRUE(
          made(catalogue::logsparse, settings)
              ->forward(x[0], x[1], x[2], one)
              .equal(made(catalogue::dense, "{}")->forward(x[0], x[1], x[2], other)));
    }
}

TEST(LogSparse, EqualsItsDefinitionWithoutRestart) {
  for (const int64_t tokens : {1, 2, 65, 200}) {
    const auto x = random_tensors(3, {1, 2, tokens, 8});
    for (const bool causal : {false, true}) {
      Pass one = pass_of(causal), other = pass_of(causal);
      const auto attention = made(catalogue::logsparse, "{}");
      EXPECT_TRUE(close(attention->forward(x[0], x[1], x[2], one),
                        attention->reference(x[0], x[1], x[2], other)));
    }
  }
}

}  // namespace
}  // namespace longspan::testing
