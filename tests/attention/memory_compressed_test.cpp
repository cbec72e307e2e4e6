#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

void set(Attention& attention, const std::string& name, const Tensor& value) {
  const torch::NoGradGuard changing;
  attention.named_parameters()[name].copy_(value);
}

// Weights that give the mean of every group.
std::shared_ptr<Attention> averaging(int64_t factor, const std::string& settings) {
  const auto attention = made(catalogue::memory_compressed, settings);
  const auto mean = torch::eye(8).repeat({factor, 1}) / factor;
  for (const char* name : {"key_weight", "value_weight"}) set(*attention, name, mean);
  return attention;
}

TEST(MemoryCompressed, IsDenseBitForBitWhereEveryTokenIsItsOwnGroup) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  Pass one, other;
  EXPECT_TRUE(
      averaging(1, "{factor: 1, null_key: false}")
          ->forward(x[0], x[1], x[2], one)
          .equal(made(catalogue::dense, "{}")->forward(x[0], x[1], x[2], other)));
}

TEST(MemoryCompressed, CausalIsDenseOverANullKeyAndThePast) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  const auto null = torch::zeros({2, 4, 1, 8});
  for (const char* settings : {"{factor: 1}", "{factor: 1, null_key: false}"}) {
    Pass one, other;
    one.mask.causal = other.mask.causal = true;
    EXPECT_TRUE(close(averaging(1, settings)->forward(x[0], x[1], x[2], one),
                      made(catalogue::dense, "{}")
                          ->forward(x[0], torch::cat({null, x[1]}, 2),
                                    torch::cat({null, x[2]}, 2), other),
                      1e-5));
  }
}

TEST(MemoryCompressed, SeesMeansOfGroups) {
  const auto x = random_tensors(3, {2, 4, 12, 8}, torch::kFloat);
  const auto means = [](const Tensor& y) { return y.reshape({2, 4, 4, 3, 8}).mean(3); };
  Pass one, other;
  EXPECT_TRUE(close(
      averaging(3, "{null_key: false}")->forward(x[0], x[1], x[2], one),
      made(catalogue::dense, "{}")->forward(x[0], means(x[1]), means(x[2]), other),
      1e-5));
}

TEST(MemoryCompressed, CausalGroupsAreSeenWhenTheyAreComplete) {
  const int64_t kGroups[] = {0, 0, 1, 1, 1, 2, 2, 2};  // of 3, by query
  const auto attention = made(catalogue::memory_compressed, "{}");
  set(*attention, "null_value", torch::full({4, 8}, 7.0));
  const Sight sight = attention->sight(8, /*causal=*/true);
  const auto x = random_tensors(3, {1, 4, 8, 8}, torch::kFloat);
  const auto run = [&](const Tensor& k, bool causal) {
    Pass pass;
    pass.mask.causal = causal;
    return attention->forward(x[0], k, x[2], pass);
  };
  const Tensor before = run(x[1], true);
  EXPECT_TRUE(before.slice(2, 0, 2).eq(7).all().item<bool>());
  for (int64_t key = 0; key < 8; ++key) {
    Tensor changed = x[1].clone();
    changed.select(2, key) += 1;
    const Tensor differs = (run(changed, true) != before).any(3).any(1)[0];
    for (int64_t query = 0; query < 8; ++query) {
      // Beside the null key a single group has a weight to change.
      const bool seen = key / 3 < kGroups[query];
      EXPECT_EQ(differs[query].item<bool>(), seen) << key << " by " << query;
      EXPECT_EQ(sight.pairs[0][query][key].item<int64_t>(),
                static_cast<int64_t>(seen ? Sees::summarised : Sees::nothing));
    }
    EXPECT_TRUE(
        (run(changed, false) != run(x[1], false)).any(3).any(1).all().item<bool>());
  }
}

TEST(MemoryCompressed, AGroupOfPaddingIsNoKeyWhateverTheBias) {
  const auto x = random_tensors(3, {1, 4, 9, 8}, torch::kFloat);
  const auto attention = made(catalogue::memory_compressed, "{}");
  for (const char* name : {"key_bias", "value_bias"})
    set(*attention, name, torch::ones({4, 8}));
  const auto without = [](const Tensor& y) {  // tokens 3, 4 and 5
    return torch::cat({y.slice(2, 0, 3), y.slice(2, 6, 9)}, 2);
  };
  Pass one, other;
  one.mask.tokens = torch::ones({1, 9}, torch::kBool);
  one.mask.tokens.slice(1, 3, 6).fill_(false);
  const Tensor padded = attention->forward(x[0], x[1], x[2], one);
  EXPECT_TRUE(close(
      without(padded),
      attention->forward(without(x[0]), without(x[1]), without(x[2]), other), 1e-6));
}

TEST(MemoryCompressed, KeepsGroupsAndWhatIsLeftOver) {
  const auto x = random_tensors(3, {2, 4, 11, 8}, torch::kFloat);
  Record state;
  Pass pass;
  pass.mask.causal = true;
  pass.state = &state;
  made(catalogue::memory_compressed, "{}")->forward(x[0], x[1], x[2], pass);
  EXPECT_EQ(state.part("groups").get("k").size(2), 3);
  EXPECT_EQ(state.get("k").size(2), 2);
}

}  // namespace
}  // namespace longspan::testing
