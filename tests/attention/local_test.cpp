#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

Tensor sight(const std::string& settings, int64_t tokens, bool causal) {
  return made(catalogue::local, settings)->sight(tokens, causal).pairs;
}

TEST(Local, IsDenseBitForBitWhenABlockHoldsAll) {
  expect_dense_bits(catalogue::local, "{block: 150}");
}

TEST(Local, IsDenseInEveryBlock) {
  const auto x = random_tensors(3, {1, 4, 25, 8});
  const auto local = made(catalogue::local, "{block: 10}"),
             dense = made(catalogue::dense, "{}");
  Pass whole;
  const Tensor out = local->forward(x[0], x[1], x[2], whole);
  for (int64_t from = 0; from < 25; from += 10) {
    const auto block = [&](const Tensor& y) {
      return y.slice(2, from, std::min<int64_t>(from + 10, 25));
    };
    Pass pass;
    EXPECT_TRUE(
        close(block(out), dense->forward(block(x[0]), block(x[1]), block(x[2]), pass)));
  }
}

TEST(Local, SeesWholeBlocks) {
  EXPECT_TRUE(sight("{block: 2}", 5, false)
                  .equal(torch::tensor({{{1, 1, 0, 0, 0},
                                         {1, 1, 0, 0, 0},
                                         {0, 0, 1, 1, 0},
                                         {0, 0, 1, 1, 0},
                                         {0, 0, 0, 0, 1}}},
                                       torch::kByte)));
  EXPECT_TRUE(sight("{block: 2, before: 1}", 6, true)
                  .equal(torch::tensor({{{1, 0, 0, 0, 0, 0},
                                         {1, 1, 0, 0, 0, 0},
                                         {1, 1, 1, 0, 0, 0},
                                         {1, 1, 1, 1, 0, 0},
                                         {0, 0, 1, 1, 1, 0},
                                         {0, 0, 1, 1, 1, 1}}},
                                       torch::kByte)));
  EXPECT_TRUE(sight("{block: 2, after: 1}", 6, false)
                  .equal(torch::tensor({{{1, 1, 1, 1, 0, 0},
                                         {1, 1, 1, 1, 0, 0},
                                         {0, 0, 1, 1, 1, 1},
                                         {0, 0, 1, 1, 1, 1},
                                         {0, 0, 0, 0, 1, 1},
                                         {0, 0, 0, 0, 1, 1}}},
                                       torch::kByte)));
}

TEST(Local, KeepsNothingOfBlocksThatAreOver) {
  const auto local = made(catalogue::local, "{block: 8}");
  const auto x = random_tensors(3, {1, 4, 20, 8});
  Record state;
  for (const auto& [to, held] : {std::pair{7, 7}, {8, 0}, {20, 4}}) {
    const auto next = [&](const Tensor& y) { return y.slice(2, state.tokens, to); };
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    local->forward(next(x[0]), next(x[1]), next(x[2]), pass);
    EXPECT_EQ(state.get("at").size(1), held) << to;
  }
}

}  // namespace
}  // namespace longspan::testing
