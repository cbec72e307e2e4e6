#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made(const std::string& settings, int64_t heads = 4) {
  return make<Attention>(catalogue::blockwise, {.heads = heads, .head_width = 8},
                         *Value::parse(settings).as<Value::Map>());
}

TEST(Blockwise, IsDenseBitForBitWithOneBlock) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  const auto dense = make<Attention>(catalogue::dense, {.heads = 4, .head_width = 8});
  for (const bool causal : {false, true}) {
    Pass one, other;
    one.mask.causal = other.mask.causal = causal;
    EXPECT_TRUE(made("{blocks: 1}")
                    ->forward(x[0], x[1], x[2], one)
                    .equal(dense->forward(x[0], x[1], x[2], other)));
  }
}

TEST(Blockwise, SeesItsBlockOrTheNextRoundTheEnd) {
  EXPECT_TRUE(made("{blocks: 3, shifts: [0, 1]}", 2)
                  ->sight(5, /*causal=*/false)
                  .pairs.equal(torch::tensor({{{1, 1, 0, 0, 0},
                                               {1, 1, 0, 0, 0},
                                               {0, 0, 1, 1, 0},
                                               {0, 0, 1, 1, 0},
                                               {0, 0, 0, 0, 1}},
                                              {{0, 0, 1, 1, 0},
                                               {0, 0, 1, 1, 0},
                                               {0, 0, 0, 0, 1},
                                               {0, 0, 0, 0, 1},
                                               {1, 1, 0, 0, 0}}},
                                             torch::kByte)));
}

TEST(Blockwise, CausalHeadsLookBack) {
  const auto blockwise = made("{block_size: 2, shifts: [0, 1]}", 2);
  EXPECT_TRUE(blockwise->sight(5, /*causal=*/true)
                  .pairs.equal(torch::tensor({{{1, 0, 0, 0, 0},
                                               {1, 1, 0, 0, 0},
                                               {0, 0, 1, 0, 0},
                                               {0, 0, 1, 1, 0},
                                               {0, 0, 0, 0, 1}},
                                              {{0, 0, 0, 0, 0},
                                               {0, 0, 0, 0, 0},
                                               {1, 1, 0, 0, 0},
                                               {1, 1, 0, 0, 0},
                                               {0, 0, 1, 1, 0}}},
                                             torch::kByte)));
  const auto x = random_tensors(3, {1, 2, 5, 8});
  Pass pass;
  pass.mask.causal = true;
  const Tensor out = blockwise->forward(x[0], x[1], x[2], pass);
  EXPECT_TRUE(out[0][1].slice(0, 0, 2).eq(0).all().item<bool>());
}

TEST(Blockwise, HeadsTakeTheShiftsOverAndOver) {
  // 10 heads at home and 2 away, as in the paper with 12 heads.
  const Tensor pairs = made("{}", 12)->sight(8, /*causal=*/false).pairs;
  for (int64_t head = 0; head < 12; ++head)
    EXPECT_EQ(pairs[head][0][0].item<int64_t>(), head % 6 == 5 ? 0 : 1) << head;
}

TEST(Blockwise, CutsEveryExampleByItsOwnLength) {
  const auto x = random_tensors(3, {4, 4, 90, 8});
  const std::vector<int64_t> lengths = {90, 61, 7, 60};
  for (const char* settings :
       {"{blocks: 3, shifts: [0, 1, 2]}", "{blocks: 7, shifts: [1, 0]}",
        "{block_size: 20, shifts: [1, 0]}"})
    for (const bool causal : {false, true}) {
      Pass pass;
      pass.mask.causal = causal;
      pass.mask.tokens =
          torch::arange(90).unsqueeze(0) < torch::tensor(lengths).unsqueeze(1);
      const Tensor batch = made(settings)->forward(x[0], x[1], x[2], pass);
      for (int64_t b = 0; b < 4; ++b) {
        const int64_t length = lengths[static_cast<size_t>(b)];
        const auto alone = [&](const Tensor& y) {
          return y.slice(0, b, b + 1).slice(2, 0, length);
        };
        Pass other;
        other.mask.causal = causal;
        EXPECT_TRUE(close(
            alone(batch),
            made(settings)->forward(alone(x[0]), alone(x[1]), alone(x[2]), other)))
            << settings << ", " << length;
      }
    }
}

TEST(Blockwise, EveryTokenSeesABlockWhereThereAreFewerThanAsked) {
  for (int64_t tokens = 1; tokens < 30; ++tokens)
    EXPECT_TRUE(made("{blocks: 7, shifts: [0, 1, 2, 9]}")
                    ->sight(tokens, /*causal=*/false)
                    .pairs.any(2)
                    .all()
                    .item<bool>())
        << tokens;
}

TEST(Blockwise, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { made("{shifts: [0, -1]}"); }),
            "blockwise: shifts must be a list of whole numbers of 0 or more, got -1");
  EXPECT_EQ(refusal([] { made("{shifts: []}"); }),
            "blockwise: shifts must have at least one number, got none");
  const auto x = random_tensors(3, {1, 4, 3, 8});
  Record state;
  Pass pass;
  pass.mask.causal = true;
  pass.state = &state;
  EXPECT_EQ(refusal([&] { made("{}")->forward(x[0], x[1], x[2], pass); }),
            "blockwise: block_size must be given for decoding, where the length is not "
            "known");
}

}  // namespace
}  // namespace longspan::testing
