#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

Value::Map settings_of(const std::string& settings) {
  return *Value::parse(settings).as<Value::Map>();
}

std::shared_ptr<Attention> made(const Mechanism& row, const std::string& settings) {
  return make<Attention>(row, {.heads = 2, .head_width = 8}, settings_of(settings));
}

Pass pass_of(bool causal) {
  Pass pass;
  pass.mask.causal = causal;
  return pass;
}

constexpr char kSmall[] =
    "{width: 6, block_height: 2, block_width: 2, memory_height: 1, memory_width: 1}";

// What `query` sees in an image of 6 x 4, by keys that are alike and values that are
// not.
Tensor keys(int64_t query, bool causal) {
  const auto alike = torch::zeros({1, 1, 24, 8});
  const auto own = torch::eye(24).view({1, 1, 24, 24});
  Pass pass = pass_of(causal);
  const auto out =
      made(catalogue::image_local_2d, kSmall)->forward(alike, alike, own, pass);
  return out[0][0][query].nonzero().view(-1);
}

TEST(ImageLocal2d, SeesItsBlockAndTheMemoryAroundIt) {
  // The block of rows 2, 3 and columns 2, 3.
  EXPECT_TRUE(keys(14, true).equal(torch::tensor({7, 8, 9, 10, 13, 14, 19})));
  EXPECT_TRUE(
      keys(21, true).equal(torch::tensor({7, 8, 9, 10, 13, 14, 15, 19, 20, 21})));
  const auto around = torch::tensor({7, 8, 9, 10, 13, 14, 15, 16, 19, 20, 21, 22});
  EXPECT_TRUE(keys(14, false).equal(around));
  EXPECT_TRUE(keys(21, false).equal(around));
  // The block in the corner.
  EXPECT_TRUE(keys(6, true).equal(torch::tensor({0, 1, 6})));
  EXPECT_TRUE(keys(1, false).equal(torch::tensor({0, 1, 2, 6, 7, 8, 12, 13, 14})));
}

TEST(ImageLocal2d, IsCausalInTheOrderOfBlocks) {
  const auto& row = catalogue::image_local_2d;
  const auto settings =
      Settings::complete(row.name, row.settings,
                         settings_of("{width: 5, block_height: 2, block_width: 2}"));
  const std::vector<int64_t> order = {0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12};
  EXPECT_EQ(row.tokens_in_order(settings, 13), order);
  const std::vector<int64_t> ragged = {0, 1, 5, 6, 2, 3, 7, 4};
  EXPECT_EQ(row.tokens_in_order(settings, 8), ragged);
}

TEST(ImageLocal2d, IsDenseBitForBitInOneBlock) {
  const auto x = random_tensors(3, {2, 2, 150, 8}, torch::kFloat);
  for (const bool causal : {false, true}) {
    Pass one = pass_of(causal), other = pass_of(causal);
    EXPECT_TRUE(
        made(catalogue::image_local_2d, "{width: 12, block_height: 13}")
            ->forward(x[0], x[1], x[2], one)
            .equal(made(catalogue::dense, "{}")->forward(x[0], x[1], x[2], other)));
  }
}

TEST(ImageLocal2d, HasTheWidthOfEachExamplesLength) {
  const auto x = random_tensors(3, {2, 2, 400, 8});
  const auto attention = made(catalogue::image_local_2d,
                              "{block_height: 3, block_width: 4, memory_height: 2, "
                              "memory_width: 3}");
  for (const bool causal : {false, true}) {
    Pass pass = pass_of(causal), alone = pass_of(causal), same = pass_of(causal);
    pass.mask.tokens = torch::arange(400).lt(torch::tensor({{400}, {150}}));
    same.mask.tokens = pass.mask.tokens;
    const auto mine = [](const Tensor& tensor) {
      return tensor.slice(0, 1).slice(2, 0, 150);
    };
    const auto together = attention->forward(x[0], x[1], x[2], pass);
    EXPECT_TRUE(close(together, attention->reference(x[0], x[1], x[2], same)));
    EXPECT_TRUE(close(mine(together),
                      attention->forward(mine(x[0]), mine(x[1]), mine(x[2]), alone)));
  }
}

TEST(ImageLocal2d, KeepsTheRowsOfBlocksThatLaterTokensSee) {
  const auto x = random_tensors(3, {1, 2, 72, 8});
  const auto attention = made(catalogue::image_local_2d, kSmall);
  Record state;
  for (int64_t at = 0; at < 72; ++at) {
    Pass pass = pass_of(true);
    pass.state = &state;
    const auto token = [&](const Tensor& tensor) {
      return tensor.slice(2, at, at + 1);
    };
    attention->forward(token(x[0]), token(x[1]), token(x[2]), pass);
    const int64_t tokens = at + 1;
    EXPECT_EQ(state.get("k").size(2), std::min<int64_t>(tokens, tokens % 12 + 12));
  }
}

TEST(ImageLocal2d, NeedsItsWidthForDecoding) {
  const auto x = random_tensors(3, {1, 2, 5, 8});
  Record state;
  Pass pass = pass_of(true);
  pass.state = &state;
  EXPECT_EQ(refusal([&] {
              made(catalogue::image_local_2d, "{}")->forward(x[0], x[1], x[2], pass);
            }),
            "image_local_2d: width must be given for decoding, where the length is not "
            "known");
}

}  // namespace
}  // namespace longspan::testing
