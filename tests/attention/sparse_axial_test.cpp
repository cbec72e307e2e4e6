#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

// What `query` sees of 14 tokens, by keys that are alike and values that are not.
Tensor keys(const std::string& settings, int64_t query, bool causal) {
  const auto alike = torch::zeros({1, 1, 14, 8});
  const auto own = torch::eye(14).view({1, 1, 14, 14});
  Pass pass = pass_of(causal);
  const auto out =
      made(catalogue::sparse_axial, settings)->forward(alike, alike, own, pass);
  return out[0][0][query].nonzero().view(-1);
}

TEST(SparseAxial, SeesItsRowAndItsColumn) {
  EXPECT_TRUE(
      keys("{columns: 4}", 9, false).equal(torch::tensor({1, 5, 8, 9, 10, 11, 13})));
  EXPECT_TRUE(keys("{columns: 4}", 9, true).equal(torch::tensor({1, 5, 8, 9})));
  EXPECT_TRUE(keys("{}", 9, false).equal(keys("{columns: 4}", 9, false)));
}

TEST(SparseAxial, IsDenseInOneRowAndInOneColumn) {
  const auto x = random_tensors(3, {2, 2, 150, 8}, torch::kFloat);
  for (const bool causal : {false, true}) {
    const auto out = [&](const Mechanism& row, const char* settings) {
      Pass pass = pass_of(causal);
      return made(row, settings)->forward(x[0], x[1], x[2], pass);
    };
    const auto dense = out(catalogue::dense, "{}");
    EXPECT_TRUE(out(catalogue::sparse_axial, "{columns: 150}").equal(dense));
    EXPECT_TRUE(close(out(catalogue::sparse_axial, "{columns: 1}"), dense, 1e-5));
  }
}

TEST(SparseAxial, HasTheColumnsOfEachExamplesLength) {
  const auto x = random_tensors(3, {3, 2, 90, 8});
  const std::vector<int64_t> lengths = {90, 36, 7};
  for (const bool causal : {false, true}) {
    Pass pass = pass_of(causal);
    pass.mask.tokens = torch::arange(90).lt(torch::tensor(lengths).unsqueeze(1));
    const auto attention = made(catalogue::sparse_axial, "{}");
    const auto together = attention->forward(x[0], x[1], x[2], pass);
    for (int64_t b = 0; b < 3; ++b) {
      const auto mine = [&](const Tensor& tensor) {
        return tensor.slice(0, b, b + 1).slice(2, 0, lengths[b]);
      };
      Pass alone = pass_of(causal);
      EXPECT_TRUE(close(mine(together),
                        attention->forward(mine(x[0]), mine(x[1]), mine(x[2]), alone)));
    }
  }
}

TEST(SparseAxial, NeedsItsColumnsForDecoding) {
  const auto x = random_tensors(3, {1, 2, 5, 8});
  Record state;
  Pass pass = pass_of(true);
  pass.state = &state;
  EXPECT_EQ(refusal([&] {
              made(catalogue::sparse_axial, "{}")->forward(x[0], x[1], x[2], pass);
            }),
            "sparse_axial: columns must be given for decoding, where the length is not "
            "known");
}

}  // namespace
}  // namespace longspan::testing
