#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made(const std::string& settings, int64_t layer = 0) {
  return make<Attention>(
      catalogue::bigbird,
      {.heads = 4, .head_width = 8, .layer = layer, .layers = layer + 1},
      *Value::parse(settings).as<Value::Map>());
}

Tensor sight(const std::string& settings, int64_t tokens, int64_t layer = 0) {
  return made(settings, layer)->sight(tokens, /*causal=*/false).pairs;
}

TEST(BigBird, IsDenseBitForBitWhereEveryPairIsSeen) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  const auto dense = make<Attention>(catalogue::dense, {.heads = 4, .head_width = 8});
  Pass plain;
  const Tensor expected = dense->forward(x[0], x[1], x[2], plain);
  for (const char* settings :
       {"{block: 8, window: 37}", "{block: 8, random: 99}", "{block: 75}",
        "{block: 8, random: 99, construction: extended}",
        "{block: 8, dense_below: 151}"}) {
    Pass pass;
    EXPECT_TRUE(made(settings)->forward(x[0], x[1], x[2], pass).equal(expected))
        << settings;
  }
}

TEST(BigBird, FirstAndLastBlockSeeAndAreSeenByAll) {
  EXPECT_TRUE(sight("{block: 2, random: 0}", 11)[0].equal(
      torch::tensor({{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                     {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1},
                     {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1},
                     {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},
                     {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},
                     {1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1},
                     {1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1},
                     {1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1},
                     {1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1},
                     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
                    torch::kByte)));
}

TEST(BigBird, ExtendedHasNoGlobalBlocks) {
  EXPECT_TRUE(
      sight("{block: 1, random: 0, construction: extended}", 4)[0].equal(torch::tensor(
          {{1, 1, 0, 0}, {1, 1, 1, 0}, {0, 1, 1, 1}, {0, 0, 1, 1}}, torch::kByte)));
}

TEST(BigBird, SeesAsManyRandomBlocksAsAsked) {
  // With blocks of one token, pairs are blocks.
  const Tensor near = sight("{block: 1, random: 0}", 30);
  const Tensor drawn = sight("{block: 1, random: 3}", 30) - near;
  EXPECT_TRUE(drawn.slice(1, 1, 29).sum(2).eq(3).all().item<bool>());

  // Where fewer are left, all of them.
  const Tensor few = sight("{block: 1, random: 3}", 7)[0];
  EXPECT_TRUE(few.eq(1).all().item<bool>());
}

TEST(BigBird, DrawsAnewForHeadLayerSeedAndLength) {
  const auto pairs = sight("{block: 1}", 40);
  EXPECT_TRUE(pairs.equal(sight("{block: 1}", 40)));
  for (int64_t head = 1; head < 4; ++head)
    EXPECT_FALSE(pairs[head].equal(pairs[head - 1]));
  EXPECT_FALSE(pairs.equal(sight("{block: 1}", 40, /*layer=*/1)));
  EXPECT_FALSE(pairs.equal(sight("{block: 1, seed: 1}", 40)));
  EXPECT_FALSE(pairs.slice(1, 3, 30).slice(2, 3, 30).equal(
      sight("{block: 1}", 41).slice(1, 3, 30).slice(2, 3, 30)));
}

TEST(BigBird, DrawsEveryBlockAboutAsOften) {
  // Token 10 of 20 does not draw 0, 9, 10, 11 and 19: three of 15.
  Tensor often = torch::zeros({20}, torch::kLong);
  for (int seed = 0; seed < 128; ++seed)
    often += sight("{block: 1, seed: " + std::to_string(seed) + "}", 20)
                 .select(1, 10)
                 .sum(0);
  for (int64_t block = 0; block < 20; ++block) {
    const auto times = often[block].item<int64_t>();
    if (block == 0 || block == 19 || std::abs(block - 10) <= 1)
      EXPECT_EQ(times, 512);
    else
      EXPECT_NEAR(static_cast<double>(times), 512. * 3 / 15, 35) << block;
  }
}

TEST(BigBird, TrainingSeesTheSameBlocks) {
  const auto x = random_tensors(3, {1, 4, 100, 8});
  const auto bigbird = made("{block: 4}");
  Pass one, other;
  one.training = true;
  one.draw = Draw(/*seed=*/7, /*step=*/9);
  EXPECT_TRUE(bigbird->forward(x[0], x[1], x[2], one)
                  .equal(bigbird->forward(x[0], x[1], x[2], other)));
}

TEST(BigBird, LastBlockIsThatOfTheExample) {
  const auto x = random_tensors(3, {4, 4, 90, 8});
  const std::vector<int64_t> lengths = {90, 61, 3, 24};
  for (const char* settings : {"{block: 4}", "{block: 4, construction: extended}",
                               "{block: 4, dense_below: 30}"}) {
    Pass pass;
    pass.mask.tokens =
        torch::arange(90).unsqueeze(0) < torch::tensor(lengths).unsqueeze(1);
    const Tensor batch = made(settings)->forward(x[0], x[1], x[2], pass);
    EXPECT_TRUE(close(batch, made(settings)->reference(x[0], x[1], x[2], pass)));
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t length = lengths[static_cast<size_t>(b)];
      const auto alone = [&](const Tensor& y) {
        return y.slice(0, b, b + 1).slice(2, 0, length);
      };
      Pass other;
      EXPECT_TRUE(close(alone(batch), made(settings)->forward(alone(x[0]), alone(x[1]),
                                                              alone(x[2]), other)))
          << settings << ", " << length;
    }
  }
}

TEST(BigBird, ExtendedSeesGivenTokens) {
  const auto x = random_tensors(3, {1, 4, 60, 8});
  const auto bigbird = made("{block: 4, construction: extended}");
  const auto run = [&](bool fast, const Tensor& v) {
    Pass pass;
    pass.mask.global = torch::arange(60).unsqueeze(0) < 2;
    return fast ? bigbird->forward(x[0], x[1], v, pass)
                : bigbird->reference(x[0], x[1], v, pass);
  };
  const Tensor out = run(true, x[2]);
  EXPECT_TRUE(close(out, run(false, x[2])));
  // All see token 1, and token 0 sees all.
  Tensor changed = x[2].clone();
  changed.select(2, 1).add_(1);
  EXPECT_TRUE(run(true, changed).ne(out).all().item<bool>());
  for (const int64_t token : {2, 30, 59}) {
    changed = x[2].clone();
    changed.select(2, token).add_(1);
    EXPECT_TRUE(run(true, changed).ne(out).select(2, 0).all().item<bool>()) << token;
  }
}

TEST(BigBird, RefusesAnEvenWindow) {
  EXPECT_EQ(refusal([] { made("{window: 4}"); }),
            "bigbird: window must be an odd number of blocks, got 4");
}

}  // namespace
}  // namespace longspan::testing
