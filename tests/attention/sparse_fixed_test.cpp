#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made(const std::string& settings, int64_t layer = 0) {
  return make<Attention>(
      catalogue::sparse_fixed,
      {.heads = 4, .head_width = 8, .layer = layer, .layers = layer + 1},
      *Value::parse(settings).as<Value::Map>());
}

TEST(SparseFixed, IsDenseBitForBitWhenABlockHoldsAll) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  const auto dense = make<Attention>(catalogue::dense, {.heads = 4, .head_width = 8});
  for (const bool causal : {false, true}) {
    Pass one, two, other;
    one.mask.causal = two.mask.causal = other.mask.causal = causal;
    const Tensor expected = dense->forward(x[0], x[1], x[2], other);
    EXPECT_TRUE(made("{stride: 150, heads: interleave}")
                    ->forward(x[0], x[1], x[2], one)
                    .equal(expected));
    EXPECT_TRUE(made("{stride: 9, summary: 9, heads: interleave}", /*layer=*/1)
                    ->forward(x[0], x[1], x[2], two)
                    .equal(expected));
  }
}

// Eight tokens, a stride of 3 and one summary in it, causal.
const std::vector<int64_t> kNear = {1, 0, 0, 0, 0, 0, 0, 0,  //
                                    1, 1, 0, 0, 0, 0, 0, 0,  //
                                    1, 1, 1, 0, 0, 0, 0, 0,  //
                                    0, 0, 0, 1, 0, 0, 0, 0,  //
                                    0, 0, 0, 1, 1, 0, 0, 0,  //
                                    0, 0, 0, 1, 1, 1, 0, 0,  //
                                    0, 0, 0, 0, 0, 0, 1, 0,  //
                                    0, 0, 0, 0, 0, 0, 1, 1};
const std::vector<int64_t> kFar = {1, 0, 0, 0, 0, 0, 0, 0,  //
                                   0, 1, 0, 0, 0, 0, 0, 0,  //
                                   0, 0, 1, 0, 0, 0, 0, 0,  //
                                   0, 0, 1, 1, 0, 0, 0, 0,  //
                                   0, 0, 1, 0, 1, 0, 0, 0,  //
                                   0, 0, 1, 0, 0, 1, 0, 0,  //
                                   0, 0, 1, 0, 0, 1, 1, 0,  //
                                   0, 0, 1, 0, 0, 1, 0, 1};

TEST(SparseFixed, SeesABlockAndSummaries) {
  const Tensor near = torch::tensor(kNear).view({8, 8}).to(torch::kByte),
               far = torch::tensor(kFar).view({8, 8}).to(torch::kByte);
  const auto sight = [](const std::string& heads, int64_t layer) {
    return made("{stride: 3, summary: 1, heads: " + heads + "}", layer)
        ->sight(8, /*causal=*/true)
        .pairs;
  };
  EXPECT_TRUE(sight("split", 0).equal(torch::stack({near, near, far, far})));
  EXPECT_TRUE(sight("merged", 0)[0].equal(near.bitwise_or(far)));
  EXPECT_TRUE(sight("interleave", 0)[0].equal(near));
  EXPECT_TRUE(sight("interleave", 1)[0].equal(far));
}

TEST(SparseFixed, SeesSummariesAheadWhereNotCausal) {
  EXPECT_TRUE(made("{stride: 3, summary: 1, first_column: true}")
                  ->sight(5, /*causal=*/false)
                  .pairs[3]
                  .equal(torch::tensor({{1, 0, 1, 1, 0},
                                        {1, 1, 1, 1, 0},
                                        {1, 0, 1, 1, 0},
                                        {1, 0, 1, 1, 0},
                                        {1, 0, 1, 1, 1}},
                                       torch::kByte)));
}

TEST(SparseFixed, PresetOfTheLongRangeArena) {
  // Causal and (the same block of 50, or key % 50 == 0, or key % 50 >= 40).
  const Tensor query = torch::arange(170).unsqueeze(1),
               key = torch::arange(170).unsqueeze(0);
  const Tensor block = torch::div(query, 50, "floor") == torch::div(key, 50, "floor"),
               place = key % 50;
  const Tensor expected =
      block.logical_or(place == 0).logical_or(place >= 40).logical_and(key <= query);
  const auto lra =
      make<Attention>(catalogue::sparse_fixed, {.heads = 4, .head_width = 8},
                      preset(catalogue::sparse_fixed, "lra"));
  EXPECT_TRUE(
      lra->sight(170, /*causal=*/true).pairs[0].to(torch::kBool).equal(expected));
}

TEST(SparseFixed, TwoLayersReachEveryTokenBefore) {
  for (const int64_t tokens : {1, 37, 64, 100}) {
    const auto of_layer = [&](int64_t layer) {
      return made("{stride: 7, summary: 1, heads: interleave}", layer)
          ->sight(tokens, /*causal=*/true)
          .pairs[0]
          .to(torch::kFloat);
    };
    const Tensor reached = of_layer(1).matmul(of_layer(0)) > 0;
    EXPECT_TRUE(reached.equal(torch::ones({tokens, tokens}, torch::kBool).tril()));
  }
}

TEST(SparseFixed, EqualsItsDefinitionHoweverHeadsAreDealt) {
  const auto x = random_tensors(3, {2, 4, 150, 8});
  for (const char* settings :
       {"{stride: 11, summary: 3, heads: split}",
        "{stride: 11, summary: 3, heads: merged}",
        "{stride: 11, summary: 3, heads: merged, first_column: true}",
        "{stride: 11, summary: 11, heads: merged, first_column: true}",
        "{stride: 11, summary: 3, heads: interleave}", "{stride: 200, heads: merged}",
        "{stride: 0}"})
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

TEST(SparseFixed, TakesTheStrideFromTheLengthOfTheExample) {
  EXPECT_TRUE(made("{stride: 0}")
                  ->sight(90, /*causal=*/false)
                  .pairs.equal(made("{stride: 9}")->sight(90, false).pairs));
  const auto x = random_tensors(3, {3, 4, 90, 8});
  const std::vector<int64_t> lengths = {90, 61, 3};
  for (const char* settings :
       {"{stride: 0, summary: 2}", "{stride: 0, heads: merged, first_column: true}"}) {
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

TEST(SparseFixed, KeepsTheBlockAndTheSummaries) {
  const auto x = random_tensors(3, {1, 4, 50, 8});
  const struct {
    const char* settings;
    int64_t layer, held;
  } cases[] = {{"{stride: 12, summary: 2, first_column: true}", 0, 4 * 3 + 2},
               {"{stride: 12, summary: 2, heads: merged}", 0, 4 * 2 + 2},
               {"{stride: 12, summary: 2, heads: interleave}", 0, 2},
               {"{stride: 12, summary: 2, heads: interleave}", 1, 4 * 2}};
  for (const auto& [settings, layer, held] : cases) {
    Record state;
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    made(settings, layer)->forward(x[0], x[1], x[2], pass);
    EXPECT_EQ(state.get("at").size(1), held) << settings << ", " << layer;
  }
}

TEST(SparseFixed, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { made("{stride: 7}"); }),
            "sparse_fixed: summary must be at most the stride of 7, got 8");
  const auto x = random_tensors(3, {1, 4, 3, 8});
  Record state;
  Pass pass;
  pass.mask.causal = true;
  pass.state = &state;
  EXPECT_EQ(refusal([&] { made("{stride: 0}")->forward(x[0], x[1], x[2], pass); }),
            "sparse_fixed: stride must be given for decoding, where the length is not "
            "known");
}

}  // namespace
}  // namespace longspan::testing
