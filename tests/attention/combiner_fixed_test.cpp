#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::combiner_fixed;

constexpr const char* kSettings[] = {"{span: 6}", "{span: 6, summary: mean}",
                                     "{span: 6, summary: deepsets_max}",
                                     "{span: 6, summary: deepsets_mean}"};

TEST(CombinerFixed, GivesEveryVisibleKeyAWeight) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 7, 12, 17, 20})
      for (const char* settings : {"{span: 4}", "{span: 4, summary: mean}"})
        expect_full_attention(kRow, settings, tokens, causal);
}

TEST(CombinerFixed, IsDenseWithSpansOfOneTokenOrOfAll) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 17, 130})
      for (const int64_t span : {int64_t{1}, tokens, tokens + 5})
        expect_dense_weights(kRow, "{span: " + std::to_string(span) + "}", tokens,
                             causal);
}

TEST(CombinerFixed, WeighsASpanAlikeForAllQueriesThatSeeItsSummary) {
  const Tensor causal = attention_matrix(kRow, "{span: 4}", 16, true);
  const Tensor both = attention_matrix(kRow, "{span: 4}", 16, false);
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_TRUE(has_rank_one(causal[head].slice(0, 4).slice(1, 0, 4)));
    EXPECT_TRUE(has_rank_one(both[head].slice(0, 4).slice(1, 0, 4)));
    EXPECT_FALSE(has_rank_one(both[head].slice(1, 0, 4)));  // with the own block
  }
}

TEST(CombinerFixed, ASpanCompetesAsOneKey) {
  // With queries of zeros all logits are equal: the keys of the own block and one for
  // each other block.
  const auto attention = made(kRow, "{span: 3}", 1);
  const Tensor zeros = torch::zeros({1, 1, 9, 8});
  const Tensor v =
      torch::arange(9, torch::kFloat).view({1, 1, 9, 1}).expand({1, 1, 9, 8});
  Pass pass = pass_of(true);
  const Tensor out = attention->forward(zeros, zeros, v, pass);
  EXPECT_NEAR(out[0][0][7][0].item<float>(), (6 + 7 + 1 + 4) / 4.0, 1e-6);
}

TEST(CombinerFixed, ABlockOfPaddingHasNoSummary) {
  Tensor real = torch::ones(12, torch::kBool);
  real.slice(0, 4, 8).fill_(false);
  real[9] = false;
  const Tensor weights = attention_matrix(kRow, "{span: 4}", 12, false, real);
  EXPECT_TRUE(weights
                  .index({torch::indexing::Slice(), torch::indexing::Slice(),
                          real.logical_not()})
                  .eq(0)
                  .all()
                  .item<bool>());
  EXPECT_TRUE(close(weights.sum(2)[0], real.to(torch::kDouble)));
}

TEST(CombinerFixed, EqualsItsDefinitionForAllSummaries) {
  expect_definitions(kRow, kSettings, 45, {12, 18});
}

TEST(CombinerFixed, DecodesInPiecesOfAnyLength) {
  expect_decoding_of_blocks(kRow, kSettings);
}

TEST(CombinerFixed, KeepsSummariesAndTheLastBlock) {
  const auto x = random_tensors(3, {2, 4, 11, 8}, torch::kFloat);
  Record state;
  Pass pass = pass_of(true);
  pass.state = &state;
  made(kRow, "{span: 4}")->forward(x[0], x[1], x[2], pass);
  EXPECT_EQ(state.part("summaries").get("k").size(2), 2);
  EXPECT_EQ(state.get("k").size(2), 3);
  EXPECT_EQ(state.get("q").size(2), 3);
}

}  // namespace
}  // namespace longspan::testing
