#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

// What `query` sees of 22 tokens, by keys that are alike and values that are not.
Tensor keys(const std::string& settings, int64_t query, bool causal) {
  const auto alike = torch::zeros({1, 1, 22, 8});
  const auto own = torch::eye(22).view({1, 1, 22, 22});
  Pass pass = pass_of(causal);
  const auto out =
      made(catalogue::image_local_1d, settings)->forward(alike, alike, own, pass);
  return out[0][0][query].nonzero().view(-1);
}

TEST(ImageLocal1d, SeesItsBlockAndTheMemoryAroundIt) {
  const char* const settings = "{block: 4, memory: 3}";
  EXPECT_TRUE(keys(settings, 2, true).equal(torch::arange(0, 3)));
  EXPECT_TRUE(keys(settings, 9, true).equal(torch::arange(5, 10)));
  EXPECT_TRUE(keys(settings, 11, true).equal(torch::arange(5, 12)));
  EXPECT_TRUE(keys(settings, 9, false).equal(torch::arange(5, 15)));
  EXPECT_TRUE(keys(settings, 21, false).equal(torch::arange(17, 22)));
  EXPECT_TRUE(keys("{block: 4, memory: 0}", 9, false).equal(torch::arange(8, 12)));
}

TEST(ImageLocal1d, IsDenseBitForBitInOneBlock) {
  expect_dense_bits(catalogue::image_local_1d, "{block: 256}");
}

TEST(ImageLocal1d, KeepsTheBlockSoFarAndItsMemory) {
  const auto x = random_tensors(3, {1, 2, 22, 8});
  const auto attention = made(catalogue::image_local_1d, "{block: 4, memory: 3}");
  Record state;
  for (int64_t at = 0; at < 22; ++at) {
    Pass pass = pass_of(true);
    pass.state = &state;
    const auto token = [&](const Tensor& tensor) {
      return tensor.slice(2, at, at + 1);
    };
    attention->forward(token(x[0]), token(x[1]), token(x[2]), pass);
    const int64_t tokens = at + 1;
    EXPECT_EQ(state.get("k").size(2), std::min<int64_t>(tokens, tokens % 4 + 3));
  }
}

}  // namespace
}  // namespace longspan::testing
