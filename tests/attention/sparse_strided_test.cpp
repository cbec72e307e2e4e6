#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made(const std::string& settings, int64_t layer = 0,
                                int64_t heads = 4) {
  return make<Attention>(
      catalogue::sparse_strided,
      {.heads = heads, .head_width = 8, .layer = layer, .layers = layer + 1},
      *Value::parse(settings).as<Value::Map>());
}

TEST(SparseStrided, IsDenseBitForBitWhenTheWindowHoldsAll) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  const auto dense = make<Attention>(catalogue::dense, {.heads = 4, .head_width = 8});
  for (const bool causal : {false, true}) {
    Pass one, two, other;
    one.mask.causal = two.mask.causal = other.mask.causal = causal;
    const Tensor expected = dense->forward(x[0], x[1], x[2], other);
    EXPECT_TRUE(made("{stride: 150, heads: interleave}")
                    ->forward(x[0], x[1], x[2], one)
                    .equal(expected));
    EXPECT_TRUE(made("{stride: 1, heads: interleave}", /*layer=*/1)
                    ->forward(x[0], x[1], x[2], two)
                    .equal(expected));
  }
}

// Eight tokens and a stride of 3, causal.
const std::vector<int64_t> kNear = {1, 0, 0, 0, 0, 0, 0, 0,  //
                                    1, 1, 0, 0, 0, 0, 0, 0,  //
                                    1, 1, 1, 0, 0, 0, 0, 0,  //
                                    0, 1, 1, 1, 0, 0, 0, 0,  //
                                    0, 0, 1, 1, 1, 0, 0, 0,  //
                                    0, 0, 0, 1, 1, 1, 0, 0,  //
                                    0, 0, 0, 0, 1, 1, 1, 0,  //
                                    0, 0, 0, 0, 0, 1, 1, 1};
const std::vector<int64_t> kFar = {1, 0, 0, 0, 0, 0, 0, 0,  //
                                   0, 1, 0, 0, 0, 0, 0, 0,  //
                                   0, 0, 1, 0, 0, 0, 0, 0,  //
                                   1, 0, 0, 1, 0, 0, 0, 0,  //
                                   0, 1, 0, 0, 1, 0, 0, 0,  //
                                   0, 0, 1, 0, 0, 1, 0, 0,  //
                                   1, 0, 0, 1, 0, 0, 1, 0,  //
                                   0, 1, 0, 0, 1, 0, 0, 1};

TEST(SparseStrided, SeesAWindowAndAStride) {
  const Tensor near = torch::tensor(kNear).view({8, 8}).to(torch::kByte),
               far = torch::tensor(kFar).view({8, 8}).to(torch::kByte);
  const auto sight = [](const std::string& heads, int64_t layer, bool causal) {
    return made("{stride: 3, heads: " + heads + "}", layer, 3)->sight(8, causal).pairs;
  };
  for (const bool causal : {false, true}) {
    const auto form = [&](const Tensor& pairs) {
      return causal ? pairs : pairs.bitwise_or(pairs.t());
    };
    EXPECT_TRUE(sight("split", 0, causal)
                    .equal(torch::stack({form(near), form(near), form(far)})));
    EXPECT_TRUE(sight("merged", 0, causal)[0].equal(form(near.bitwise_or(far))));
    EXPECT_TRUE(sight("interleave", 0, causal)[0].equal(form(near)));
    EXPECT_TRUE(sight("interleave", 1, causal)[0].equal(form(far)));
  }
}

TEST(SparseStrided, TwoLayersReachEveryTokenBefore) {
  for (const int64_t tokens : {1, 37, 64, 100}) {
    const auto of_layer = [&](int64_t layer) {
      return made("{stride: 7, heads: interleave}", layer)
          ->sight(tokens, /*causal=*/true)
          .pairs[0]
          .to(torch::kFloat);
    };
    const Tensor reached = of_layer(1).matmul(of_layer(0)) > 0;
    EXPECT_TRUE(reached.equal(torch::ones({tokens, tokens}, torch::kBool).tril()));
  }
}

TEST(SparseStrided, EqualsItsDefinitionHoweverHeadsAreDealt) {
  const auto x = random_tensors(3, {2, 4, 150, 8});
  for (const char* settings :
       {"{stride: 11, heads: split}", "{stride: 11, heads: merged}",
        "{stride: 11, heads: interleave}", "{stride: 200, heads: merged}",
        "{stride: 1, heads: merged}", "{stride: 0}"})
    for (const int64_t layer : {0, 1})
      for (const bool causal : {false, true}) {
        Pass one, other;
        one.mask.causal = other.mask.causal = causal;
        const auto sparse = made(settings, layer);
        EXPECT_TRUE(close(sparse->forward(x[0], x[1], x[2], one),
                          sparse->reference(x[0], x[1], x[2], other)))
            << settings << ", " << layer;
      }
}

TEST(SparseStrided, TakesTheStrideFromTheLengthOfTheExample) {
  EXPECT_TRUE(made("{stride: 0}")
                  ->sight(90, /*causal=*/false)
                  .pairs.equal(made("{stride: 9}")->sight(90, false).pairs));
  const auto x = random_tensors(3, {3, 4, 90, 8});
  const std::vector<int64_t> lengths = {90, 61, 3};
  for (const char* settings : {"{stride: 0}", "{stride: 0, heads: merged}"}) {
    Pass pass;
    pass.mask.tokens =
        torch::arange(90).unsqueeze(0) < torch::tensor(lengths).unsqueeze(1);
    const Tensor batch = made(settings)->forward(x[0], x[1], x[2], pass);
    for (int64_t b = 0; b < 3; ++b) {
      const auto alone = [&](const Tensor& y) {
        return y.slice(0, b, b + 1).slice(2, 0, lengths[static_cast<size_t>(b)]);
      };
      Pass other;
      EXPECT_TRUE(close(alone(batch), made(settings)->forward(alone(x[0]), alone(x[1]),
                                                              alone(x[2]), other)))
          << settings << ", " << b;
    }
  }
}

TEST(SparseStrided, LayersThatSeeNearKeepAWindow) {
  const auto x = random_tensors(3, {1, 4, 50, 8});
  for (const auto& [layer, held] : {std::pair{0, 8}, {1, 50}}) {
    Record state;
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    made("{stride: 9, heads: interleave}", layer)->forward(x[0], x[1], x[2], pass);
    EXPECT_EQ(state.get("at").size(1), held);
  }
}

TEST(SparseStrided, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { made("{}", 0, /*heads=*/1); }),
            "sparse_strided: heads: split needs 2 heads or more, got 1; choose merged "
            "or interleave");
  const auto x = random_tensors(3, {1, 4, 3, 8});
  Record state;
  Pass pass;
  pass.mask.causal = true;
  pass.state = &state;
  EXPECT_EQ(refusal([&] { made("{stride: 0}")->forward(x[0], x[1], x[2], pass); }),
            "sparse_strided: stride must be given for decoding, where the length is "
            "not known");
}

}  // namespace
}  // namespace longspan::testing
