#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::combiner_axial_horizontal;

constexpr const char* kSettings[] = {"{width: 6}", "{width: 6, summary: mean}",
                                     "{width: 6, summary: deepsets_max}",
                                     "{width: 6, summary: deepsets_mean}"};

TEST(CombinerAxialHorizontal, GivesEveryVisibleKeyAWeight) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 7, 12, 17, 20})
      for (const char* settings : {"{width: 4}", "{width: 4, summary: mean}"})
        expect_full_attention(kRow, settings, tokens, causal);
}

TEST(CombinerAxialHorizontal, IsDenseOnOneRowOrOneColumn) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 17, 70})
      for (const int64_t width : {int64_t{1}, tokens, tokens + 3})
        expect_dense_weights(kRow, "{width: " + std::to_string(width) + "}", tokens,
                             causal);
}

TEST(CombinerAxialHorizontal, WeighsARowAlikeForAllQueriesOfAColumn) {
  const auto queries = torch::tensor({5, 9, 13});  // of column 1, below the first row
  const auto others = torch::tensor({0, 2, 3});    // the first row without that column
  for (const bool causal : {false, true}) {
    const Tensor weights = attention_matrix(kRow, "{width: 4}", 16, causal)[0];
    EXPECT_TRUE(has_rank_one(weights.index_select(0, queries).index_select(1, others)));
    EXPECT_FALSE(has_rank_one(weights.slice(0, 4, 8).index_select(1, others)));
  }
}

TEST(CombinerAxialHorizontal, EqualsItsDefinitionForAllSummaries) {
  expect_definitions(kRow, kSettings, 45, {12, 18});
}

TEST(CombinerAxialHorizontal, DecodesInPiecesOfAnyLength) {
  expect_decoding_of_blocks(kRow, kSettings);
}

}  // namespace
}  // namespace longspan::testing
