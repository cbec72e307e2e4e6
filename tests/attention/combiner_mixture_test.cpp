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

TEST(CombinerMixture, EqualsItsDefinitionForAllSummaries) {
  for (const char* settings : kSettings)
    for (const bool causal : {false, true}) {
      expect_definition(kRow, settings, 45, causal);
      Tensor real = torch::arange(45).remainder(5) != 3;
      real.slice(0, 12, 18).fill_(false);
      expect_definition(kRow, settings, 45, causal, real);
    }
}

TEST(CombinerMixture, DecodesInPiecesOfAnyLength) {
  for (const char* settings : kSettings) {
    expect_decoding(kRow, settings, 45, 0, 1);
    expect_decoding(kRow, settings, 45, 23, 1);
    expect_decoding(kRow, settings, 45, 4, 7);
    expect_decoding(kRow, settings, 45, 12, 33);
  }
}

}  // namespace
}  // namespace longspan::testing
