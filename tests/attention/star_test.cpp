#include <algorithm>

#include "longspan/attention/mechanism.h"
#include "longspan/kernels/layer_norm.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 24, .heads = 4, .head_width = 8};

std::shared_ptr<Mixer> made(const std::string& settings) {
  torch::manual_seed(3);
  return make<Mixer>(catalogue::star, kSizes, *Value::parse(settings).as<Value::Map>());
}

Tensor heads_of(const Tensor& x) { return x.unflatten(-1, {4, 8}).transpose(1, 2); }

// What `part` of a star computes for queries x over the rows `keys`, by dense
// attention.
Tensor by_dense(const Mixer& star, const std::string& part, const Tensor& x,
                const Tensor& keys) {
  const auto of = star.named_parameters();
  const auto linear = [&](const std::string& name, const Tensor& y) {
    const Tensor* bias = of.find(part + name + "_bias");
    return torch::linear(y, of[part + name + "_weight"], bias ? *bias : Tensor());
  };
  Pass pass;
  const Tensor out =
      make<Attention>(catalogue::dense, kSizes)
          ->forward(heads_of(linear("q", x)), heads_of(linear("k", keys)),
                    heads_of(linear("v", keys)), pass);
  return torch::leaky_relu(linear("out", out.transpose(1, 2).flatten(2)));
}

TEST(Star, RoundsAreDenseAttentionOverFewKeys) {
  const auto star = made("{rounds: 2}");
  const auto x = random_tensors(1, {2, 5, 24}, torch::kFloat)[0];
  Tensor state = x, relay = x.mean(1, /*keepdim=*/true);
  for (int round = 0; round < 2; ++round) {
    const Tensor normal = longspan::layer_norm(state);
    std::vector<Tensor> next;
    for (int64_t token = 0; token < 5; ++token)
      next.push_back(by_dense(
          *star, "ring_", normal.slice(1, token, token + 1),
          torch::cat({normal.slice(1, std::max<int64_t>(token - 1, 0), token + 2),
                      x.slice(1, token, token + 1), relay},
                     1)));
    state = torch::cat(next, 1);
    relay = by_dense(*star, "relay_", relay, torch::cat({relay, state}, 1));
  }
  Pass pass;
  EXPECT_TRUE(close(star->forward(x, pass), state, 1e-5));
}

TEST(Star, HasNoDirectionAlongTheRing) {
  const auto star = made("{}");
  const auto x = random_tensors(1, {2, 70, 24}, torch::kFloat)[0];
  Pass one, other;
  EXPECT_TRUE(
      close(star->forward(x.flip(1), one).flip(1), star->forward(x, other), 1e-5));
}

TEST(Star, WeightsAreSharedByRoundsUnlessAskedFor) {
  const auto shared = made("{rounds: 3}"), own = made("{rounds: 3, per_round: true}");
  EXPECT_EQ(3 * shared->parameters().size(), own->parameters().size());
  {
    const std::string_view prefix = "round0_";
    const torch::NoGradGuard changing;
    for (auto& parameter : own->named_parameters())
      parameter.value().copy_(
          shared->named_parameters()[parameter.key().substr(prefix.size())]);
  }
  const auto x = random_tensors(1, {2, 9, 24}, torch::kFloat)[0];
  Pass one, other;
  EXPECT_TRUE(shared->forward(x, one).equal(own->forward(x, other)));
}

TEST(Star, PictureHasTheRelayFirst) {
  const Sight sight = made("{}")->sight(4, /*causal=*/false);
  EXPECT_EQ(sight.memory_rows, 1);
  EXPECT_EQ(sight.memory_columns, 1);
  const auto expected = torch::tensor({{1, 1, 1, 1, 1},
                                       {1, 1, 1, 3, 3},
                                       {1, 1, 1, 1, 3},
                                       {1, 3, 1, 1, 1},
                                       {1, 3, 3, 1, 1}},
                                      torch::kByte);
  EXPECT_TRUE(sight.pairs[0].equal(expected));
}

TEST(Star, StandsInForTheWholeBlock) {
  const Keeps keeps = catalogue::star.keeps;
  EXPECT_FALSE(keeps.residual || keeps.norm || keeps.feed_forward);
}

}  // namespace
}  // namespace longspan::testing
