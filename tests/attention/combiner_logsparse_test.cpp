#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::combiner_logsparse;

constexpr const char* kSummaries[] = {
    "{}", "{summary: mean}", "{summary: deepsets_max}", "{summary: deepsets_mean}"};

TEST(CombinerLogSparse, GivesEveryVisibleKeyAWeight) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 3, 5, 16, 17, 33, 64, 65, 100})
      for (const char* settings : {"{}", "{summary: mean}"})
        expect_full_attention(kRow, settings, tokens, causal);
}

TEST(CombinerLogSparse, IsDenseForTwoTokens) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2})
      for (const char* settings : {"{}", "{summary: mean}"})
        expect_dense_weights(kRow, settings, tokens, causal);
}

// With queries and keys of zeros each summary weighs as much as a key, and the tokens
// of a span share its weight.
TEST(CombinerLogSparse, CutsWhatIsSeenAtTheBitsOfAPosition) {
  const auto weights = [](int64_t tokens, bool causal) {
    const auto attention = made(kRow, "{}", 1);
    const Tensor zeros = torch::zeros({1, 1, tokens, 8});
    const Tensor own = torch::eye(tokens).view({1, 1, tokens, tokens});
    Pass pass = pass_of(causal);
    return attention->forward(zeros, zeros, own, pass)[0][0][22];
  };
  const auto shares = [](int64_t tokens, std::vector<Span> spans) {
    Tensor all = torch::zeros(tokens);
    for (const auto& [from, to] : spans)
      all.slice(0, from, to)
          .fill_(1.0 / static_cast<double>(spans.size()) /
                 static_cast<double>(to - from));
    return all;
  };
  const std::vector<Span> past = {{0, 16}, {16, 20}, {20, 22}, {22, 23}};
  EXPECT_TRUE(close(weights(41, true), shares(41, past), 1e-6));
  std::vector<Span> both = past;
  for (const Span& span : {Span{23, 24}, Span{24, 32}, Span{32, 41}})
    both.push_back(span);
  EXPECT_TRUE(close(weights(41, false), shares(41, both), 1e-6));
}

// In a sequence of a power of two, what follows is the mirror image of what is before.
TEST(CombinerLogSparse, SeesWhatFollowsAsAMirrorShowsWhatIsBefore) {
  constexpr int64_t kTokens = 32;
  const auto attention = made(kRow, "{}", 1);
  const Tensor zeros = torch::zeros({1, 1, kTokens, 8}, torch::kDouble);
  const Tensor own = torch::eye(kTokens, torch::kDouble).view({1, 1, kTokens, kTokens});
  Pass pass = pass_of(/*causal=*/false);
  const Tensor weights = attention->forward(zeros, zeros, own, pass)[0][0];
  for (int64_t query = 0; query < kTokens; ++query) {
    Tensor shares = torch::zeros(kTokens, torch::kDouble);
    int64_t spans = 1;
    shares[query] = 1;
    const auto add_past = [&](int64_t last, const auto& place) {
      for (int64_t width = 1; width <= last; width *= 2) {
        if (last / width % 2 == 0) continue;
        ++spans;
        for (int64_t i = last / width * width - width; i < last / width * width; ++i)
          shares[place(i)] = 1.0 / static_cast<double>(width);
      }
    };
    add_past(query, [](int64_t i) { return i; });
    add_past(kTokens - 1 - query, [](int64_t i) { return kTokens - 1 - i; });
    EXPECT_TRUE(close(weights[query], shares / spans, 1e-12)) << query;
  }
}

TEST(CombinerLogSparse, WeighsASpanAlikeForAllQueriesThatSeeIt) {
  const Tensor causal = attention_matrix(kRow, "{}", 128, true);
  const Tensor both = attention_matrix(kRow, "{}", 128, false);
  const auto part = [](const Tensor& weights, Span queries, Span keys) {
    return weights.slice(0, queries.from, queries.to).slice(1, keys.from, keys.to);
  };
  for (int64_t head = 0; head < 4; ++head) {
    for (const Tensor& weights : {causal[head], both[head]}) {
      EXPECT_TRUE(has_rank_one(part(weights, {64, 128}, {0, 64})));
      EXPECT_TRUE(has_rank_one(part(weights, {48, 64}, {32, 48})));
      EXPECT_TRUE(has_rank_one(part(weights, {12, 16}, {8, 12})));
      EXPECT_FALSE(has_rank_one(part(weights, {32, 128}, {0, 32})));
    }
    EXPECT_TRUE(has_rank_one(part(both[head], {0, 64}, {64, 128})));
    EXPECT_TRUE(has_rank_one(part(both[head], {8, 12}, {12, 16})));
    EXPECT_FALSE(has_rank_one(part(both[head], {0, 96}, {96, 128})));
  }
}

TEST(CombinerLogSparse, EqualsItsDefinitionForAllSummaries) {
  for (const char* settings : kSummaries)
    for (const bool causal : {false, true})
      for (const int64_t tokens : {16, 31, 80})
        expect_definition(kRow, settings, tokens, causal);
  expect_definitions(kRow, kSummaries, 145, {30, 70});
}

// Spans of 64 and more blocks.
TEST(CombinerLogSparse, EqualsItsDefinitionFarAway) {
  for (const bool causal : {false, true})
    expect_definition(kRow, "{}", 1100, causal, Tensor(), /*heads=*/1);
}

TEST(CombinerLogSparse, DoesNotSeeHowMuchPaddingThereIs) {
  Tensor real = torch::zeros(100, torch::kBool);
  real.slice(0, 0, 41).fill_(true);
  const auto x = random_tensors(3, {1, 4, 100, 8});
  const auto of = [&](int64_t tokens, bool causal) {
    Pass pass = pass_of(causal);
    pass.mask.tokens = real.slice(0, 0, tokens).unsqueeze(0);
    const auto part = [&](const Tensor& y) { return y.slice(2, 0, tokens); };
    return made(kRow)
        ->forward(part(x[0]), part(x[1]), part(x[2]), pass)
        .slice(2, 0, 41);
  };
  for (const bool causal : {false, true})
    for (const int64_t tokens : {42, 64, 65, 100})
      EXPECT_TRUE(close(of(tokens, causal), of(41, causal))) << tokens;
}

TEST(CombinerLogSparse, DecodesInPiecesOfAnyLength) {
  for (const char* settings : kSummaries) {
    expect_decoding(kRow, settings, 150, 0, 1);
    expect_decoding(kRow, settings, 150, 100, 1);
    expect_decoding(kRow, settings, 150, 5, 17);
    expect_decoding(kRow, settings, 150, 31, 64);
  }
}

TEST(CombinerLogSparse, DecodesFarAway) {
  expect_decoding(kRow, "{}", 1100, 512, 49);
  expect_decoding(kRow, "{}", 1100, 1010, 1);
}

TEST(CombinerLogSparse, KeepsASummaryForEveryBitOfTheNumberOfBlocks) {
  const auto x = random_tensors(3, {2, 4, 180, 8}, torch::kFloat);  // 11 blocks and 4
  Record state;
  Pass pass = pass_of(true);
  pass.state = &state;
  made(kRow)->forward(x[0], x[1], x[2], pass);
  EXPECT_EQ(state.part("summaries").get("k").size(2), 3);
  EXPECT_EQ(state.part("pools").get("q").size(2), 3);
  EXPECT_EQ(state.get("q").size(2), 4);
  EXPECT_EQ(state.get("k").size(2), 180);
}

}  // namespace
}  // namespace longspan::testing
