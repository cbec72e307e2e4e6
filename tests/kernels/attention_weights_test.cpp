#include "longspan/kernels/attention_weights.h"

#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::close;
using testing::random_tensors;
using testing::refusal;
using torch::Tensor;

// Two sources, grouped heads, a window, padding, a bias, rows by index: the weights are
// whatever block_attention() makes of them.
struct Seen {
  Queries queries;
  std::vector<Source> sources;
  Attended result;
};

Seen seen_by(torch::Dtype dtype, bool rows_by_index = false) {
  constexpr int64_t kTokens = 150, kSummaries = 9;
  torch::manual_seed(3);
  Queries queries{.q = torch::randn({2, 4, kTokens, 8}, dtype)};
  Source tokens{.k = torch::randn({2, 2, kTokens, 8}, dtype),
                .v = torch::randn({2, 2, kTokens, 5}, dtype),
                .layout = Layout(kTokens, kTokens, window_of_keys(20, 30))};
  Source summaries{.k = torch::randn({1, 4, kSummaries, 8}, dtype),
                   .v = torch::randn({1, 4, kSummaries, 5}, dtype)};
  tokens.bias.slopes = torch::rand({4}, dtype);
  tokens.to = torch::full({kTokens}, 140, torch::kLong);
  if (rows_by_index) queries.rows = torch::randperm(kTokens, torch::kLong);
  const Attended result = block_attention(queries, {tokens, summaries});
  return {queries, {tokens, summaries}, result};
}

TEST(AttentionWeights, OfRowsGiveTheOutput) {
  for (const bool by_index : {false, true}) {
    const Seen seen = seen_by(torch::kDouble, by_index);
    const std::vector<int64_t> rows = {0,  3,  63, 64, 149, 3,  80, 81, 82,
                                       83, 84, 85, 86, 87,  88, 89, 90, 91};
    const auto weights = row_weights(seen.queries, seen.sources, seen.result.lse, rows);
    Tensor out;
    for (size_t s = 0; s < weights.size(); ++s) {
      const Tensor& v = seen.sources[s].v;
      const Tensor part = weights[s].matmul(v.repeat_interleave(4 / v.size(1), 1));
      out = s == 0 ? part : out + part;
    }
    const Tensor expected =
        seen.result.out.index_select(2, torch::tensor(rows, torch::kLong));
    EXPECT_TRUE(close(out, expected));
  }
}

TEST(AttentionWeights, AreThoseOfTheReference) {
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    const double tolerance = dtype == torch::kDouble ? 1e-10 : 1e-5;
    const Seen seen = seen_by(dtype);
    const std::vector<int64_t> rows = {5, 100, 149};
    const auto weights = row_weights(seen.queries, seen.sources, seen.result.lse, rows);
    const auto expected =
        row_weights_reference(seen.queries, seen.sources, seen.result.lse, rows);
    const auto mass = column_mass(seen.queries, seen.sources, seen.result.lse);
    const auto expected_mass =
        column_mass_reference(seen.queries, seen.sources, seen.result.lse);
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_TRUE(close(weights[s], expected[s], tolerance));
      EXPECT_TRUE(close(mass[s], expected_mass[s], tolerance));
    }
  }
}

TEST(AttentionWeights, KnowTheOffsetBesideVectorsOnEveryDevice) {
  for (const torch::Device device : testing::devices()) {
    torch::manual_seed(4);
    const auto normal = [&](at::IntArrayRef shape) {
      return torch::randn(shape, torch::kFloat).to(device);
    };
    const Queries queries{.q = normal({2, 2, 90, 8}), .first = 20};
    Source source{.k = normal({2, 2, 110, 8}), .v = normal({2, 2, 110, 5})};
    source.bias = {
        .vectors = normal({1, 60, 8}), .offset = normal({2, 8}), .first = -30};
    const Attended result = block_attention(queries, {source});
    const std::vector<int64_t> rows = {0, 70, 89};
    EXPECT_TRUE(close(row_weights(queries, {source}, result.lse, rows)[0],
                      row_weights_reference(queries, {source}, result.lse, rows)[0],
                      1e-5));
    EXPECT_TRUE(close(column_mass(queries, {source}, result.lse)[0],
                      column_mass_reference(queries, {source}, result.lse)[0], 1e-5));
  }
}

TEST(AttentionWeights, OfAllKeysAddUpToTheQueriesThatSeeSome) {
  const Seen seen = seen_by(torch::kDouble);
  const auto mass = column_mass(seen.queries, seen.sources, seen.result.lse);
  const Tensor total = mass[0].sum(2) + mass[1].sum(2);
  EXPECT_TRUE(close(total, torch::full_like(total, 150)));
}

TEST(AttentionWeights, AreSharesOfAllThatTheLseIsOf) {
  const Seen seen = seen_by(torch::kDouble);
  const auto all = column_mass(seen.queries, seen.sources, seen.result.lse);
  const auto alone = column_mass(seen.queries, {seen.sources[1]}, seen.result.lse);
  EXPECT_TRUE(close(alone[0], all[1]));
}

TEST(AttentionWeights, OfLowPrecisionAreInFloat) {
  const Seen seen = seen_by(torch::kBFloat16);
  const auto mass = column_mass(seen.queries, seen.sources, seen.result.lse);
  EXPECT_EQ(mass[0].scalar_type(), torch::kFloat);
  const Tensor total = mass[0].sum(2) + mass[1].sum(2);
  EXPECT_TRUE(close(total, torch::full_like(total, 150), 1e-4));
}

TEST(AttentionWeights, OfRowsThatSeeNothingAre0) {
  const auto tensors = random_tensors(3, {1, 1, 70, 4});
  Source source{.k = tensors[1], .v = tensors[2]};
  source.to = torch::full({70}, 66, torch::kLong);
  const Queries queries{.q = tensors[0]};
  const Attended result = block_attention(queries, {source});
  const auto weights = row_weights(queries, {source}, result.lse, {65, 66});
  EXPECT_TRUE(close(weights[0].select(2, 0).sum(), torch::ones({}, torch::kDouble)));
  EXPECT_EQ(weights[0].select(2, 1).abs().max().item<double>(), 0);
}

TEST(AttentionWeights, RefuseWhatDoesNotFit) {
  const Seen seen = seen_by(torch::kDouble);
  EXPECT_EQ(refusal([&] {
              row_weights(seen.queries, seen.sources, seen.result.lse, {0, 150});
            }),
            "attention weights: rows must be between 0 and 149, got 150");
  EXPECT_EQ(
      refusal([&] { column_mass(seen.queries, seen.sources, torch::zeros({3})); }),
      "attention weights: lse must be [2, 4, 150], got [3]");
}

}  // namespace
}  // namespace longspan
