#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::combiner_mixture;

constexpr const char* kSettings[] = {"{width: 6}", "{width: 6, summary: deepsets_mean}",
                                     "{width: 6, joint: true}",
                                     "{width: 6, joint: true, summary: mean}",
                                     "{width: 6, joint: true, summary: deepsets_max}"};

TEST(CombinerMixture, GivesEveryVisibleKeyAWeight) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 7, 12, 17, 20})
      for (const char* settings : {"{width: 4}", "{width: 4, joint: true}",
                                   "{width: 4, joint: true, summary: mean}"})
        expect_full_attention(kRow, settings, tokens, causal);
}

TEST(CombinerMixture, IsTheMeanOfTheVerticalAndTheHorizontalForm) {
  for (const bool causal : {false, true}) {
    const auto of = [&](const Mechanism& row) {
      return attention_matrix(row, "{width: 5}", 33, causal);
    };
    EXPECT_TRUE(close(of(kRow), (of(catalogue::combiner_axial_vertical) +
                                 of(catalogue::combiner_axial_horizontal)) /
                                    2));
  }
}

TEST(CombinerMixture, InOneSoftmaxSpansCompeteAsOneKeyEach) {
  // With queries of zeros all logits are equal. The last token of a grid of 3 x 3: 3 of
  // its row, 2 above it in its column, 2 other columns, and of each row above what is
  // left of it; nothing is right of it.
  const auto attention = made(kRow, "{width: 3, joint: true}", 1);
  const Tensor zeros = torch::zeros({1, 1, 9, 8}), v = torch::eye(9).view({1, 1, 9, 9});
  Pass pass = pass_of(true);
  const Tensor last = attention->forward(zeros, zeros, v, pass)[0][0][8];
  const auto entries = torch::tensor({1., 1., 1., 1., 1., 1., 1., 1., 1.}) / 9;
  EXPECT_TRUE(close(last.slice(0, 6), entries.slice(0, 0, 3), 1e-6));
  EXPECT_NEAR(last[2].item<double>(), 1 / 9.0, 1e-6);
  EXPECT_NEAR(last[0].item<double>(), (0.5 + 0.5) / 9, 1e-6);
}

// As before, for a token with columns on both sides: 4 keys, 2 other columns, and of
// each row above what is on the left and on the right.
TEST(CombinerMixture, InOneSoftmaxWhatIsOffTheCrossCountsTwice) {
  const auto attention = made(kRow, "{width: 3, joint: true}", 1);
  const Tensor zeros = torch::zeros({1, 1, 9, 8}), v = torch::eye(9).view({1, 1, 9, 9});
  Pass pass = pass_of(true);
  const Tensor weights = attention->forward(zeros, zeros, v, pass)[0][0][7];
  const auto entries = torch::tensor({1.5, 1., 1.5, 1.5, 1., 1.5, 1., 1., 0.}) / 10;
  EXPECT_TRUE(close(weights, entries, 1e-6));
}

// A key off the cross is in two summaries: one of its row, one of its column. Here the
// last row's queries give no weight to what has no key of the first row, so keys of the
// rows between are left in the summary of their column alone; the same by columns.
TEST(CombinerMixture, InOneSoftmaxASummaryWeighsItsSpanAlikeForAllThatSeeIt) {
  constexpr int64_t kSide = 5;
  constexpr const char* kJoint = "{width: 5, joint: true}";
  const Tensor at = torch::arange(kSide * kSide), row = torch::div(at, kSide, "floor"),
               column = at.remainder(kSide);
  const auto places = [](const Tensor& where) { return where.nonzero().view(-1); };
  for (const bool causal : {false, true})
    for (const auto& [line, across] : {std::pair(row, column), {column, row}}) {
      Tensors x = random_tensors(2, {1, 4, kSide * kSide, 8});
      x[0].select(3, 0).copy_(line.eq(kSide - 1) * 1e4);
      x[1].select(3, 0).copy_(line.gt(0) * -1.);
      const Tensor queries = places(line.eq(kSide - 1) & across.gt(0)),
                   keys = places(line.gt(0) & line.lt(kSide - 1) & across.eq(0));
      const auto block = [&](const Tensor& weights) {
        return weights[0].index_select(0, queries).index_select(1, keys);
      };
      EXPECT_TRUE(has_rank_one(block(attention_matrix(kRow, kJoint, x, causal))));
      EXPECT_FALSE(
          has_rank_one(block(attention_matrix(kRow, kJoint, kSide * kSide, causal))));
    }
}

TEST(CombinerMixture, EqualsItsDefinitionForAllSummaries) {
  expect_definitions(kRow, kSettings, 45, {12, 18});
}

TEST(CombinerMixture, DecodesInPiecesOfAnyLength) {
  expect_decoding_of_blocks(kRow, kSettings);
}

}  // namespace
}  // namespace longspan::testing
