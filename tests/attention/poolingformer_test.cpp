#include "longspan/attention/head_axis.h"
#include "longspan/contract/subject.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHeads = 4, kWidth = 8, kEmbedding = 24;

std::shared_ptr<Mixer> made_mixer(const std::string& settings,
                                  int64_t embedding = kEmbedding) {
  torch::manual_seed(3);
  return make<Mixer>(catalogue::poolingformer,
                     {.embedding = embedding, .heads = kHeads, .head_width = kWidth},
                     *Value::parse(settings).as<Value::Map>());
}

Tensor parameter(const Mixer& mixer, const std::string& name) {
  return mixer.named_parameters()[name].detach();
}

void set(Mixer& mixer, const std::string& name, const Tensor& value) {
  const torch::NoGradGuard changing;
  mixer.named_parameters()[name].copy_(value);
}

Tensor projected(const Mixer& mixer, const std::string& name, const Tensor& x) {
  return torch::linear(x, parameter(mixer, name + "_weight"));
}

Tensor heads(const Mixer& mixer, const std::string& name, const Tensor& x) {
  return in_heads(projected(mixer, name, x), kHeads);
}

Tensor tokens_of(int64_t count, int64_t examples = 2, int64_t embedding = kEmbedding) {
  return random_tensors(1, {examples, count, embedding}, torch::kFloat)[0];
}

Tensor run(Mixer& mixer, const Tensor& x, const Tensor& real = {}) {
  const torch::NoGradGuard measuring;
  Pass pass;
  pass.mask.tokens = real;
  return mixer.forward(x, pass);
}

Tensor by_dense(const Mixer& mixer, const std::string& level, const Tensor& x) {
  Pass pass;
  return made(catalogue::dense)
      ->forward(heads(mixer, level + "q", x), heads(mixer, level + "k", x),
                heads(mixer, level + "v", x), pass);
}

// Which queries change with which tokens, [queries, tokens].
Tensor seen_by_change(Mixer& mixer, int64_t tokens) {
  const Tensor x = tokens_of(tokens, 1), before = run(mixer, x);
  std::vector<Tensor> columns;
  for (int64_t token = 0; token < tokens; ++token) {
    Tensor changed = x.clone();
    changed.select(1, token) += torch::linspace(-1, 1, kEmbedding);
    columns.push_back((run(mixer, changed) != before).any(2)[0]);
  }
  return torch::stack(columns, 1);
}

TEST(Poolingformer, IsTwoDenseLevelsWhereEveryTokenIsASlot) {
  const Tensor x = tokens_of(150);
  for (const std::string input : {"stack", "mix"}) {
    for (const char* pooling : {"mean", "max", "ldconv"}) {
      const auto mixer = made_mixer(
          "{window: 1000, pooled_window: 1000, kernel: 1, stride: 1, pooling: " +
          std::string(pooling) + ", input: " + input + "}");
      const Tensor y = by_dense(*mixer, "", x);
      const Tensor z =
          by_dense(*mixer, "pooled_", input == "stack" ? joined_heads(y) : x);
      EXPECT_TRUE(
          close(run(*mixer, x), projected(*mixer, "out", joined_heads(y + z)), 1e-5))
          << input << ", " << pooling;
    }
  }
}

TEST(Poolingformer, SeesTheSlotsWhoseMiddleIsNear) {
  const std::string settings = "{window: 0, pooled_window: 2, kernel: 3, stride: 2";
  const auto expected = torch::tensor({{1, 2, 2, 0, 0, 0, 0},
                                       {2, 1, 2, 2, 2, 0, 0},
                                       {2, 2, 1, 2, 2, 0, 0},
                                       {2, 2, 2, 1, 2, 2, 2},
                                       {0, 0, 2, 2, 1, 2, 2},
                                       {0, 0, 2, 2, 2, 1, 2},
                                       {0, 0, 0, 0, 2, 2, 1}},
                                      torch::kByte);
  for (const char* input : {", input: mix}", "}"}) {
    const auto mixer = made_mixer(settings + input);
    EXPECT_TRUE(mixer->sight(7, /*causal=*/false).pairs[0].equal(expected));
    EXPECT_TRUE(seen_by_change(*mixer, 7).equal(expected > 0));
  }
}

TEST(Poolingformer, StackedLevelsReachFurtherByTheWindow) {
  const auto mixer = made_mixer("{window: 1, pooled_window: 1, kernel: 2, stride: 3}");
  // Slots hold tokens 0 and 1, 3 and 4, 6 and 7; their middles are 1, 4 and 7.
  const auto expected = torch::tensor({{1, 1, 2, 0, 0, 0, 0, 0},
                                       {1, 1, 1, 0, 0, 0, 0, 0},
                                       {2, 1, 1, 1, 0, 0, 0, 0},
                                       {0, 0, 1, 1, 1, 2, 0, 0},
                                       {0, 0, 2, 1, 1, 1, 0, 0},
                                       {0, 0, 2, 2, 1, 1, 1, 0},
                                       {0, 0, 0, 0, 0, 1, 1, 1},
                                       {0, 0, 0, 0, 0, 2, 1, 1}},
                                      torch::kByte);
  EXPECT_TRUE(mixer->sight(8, /*causal=*/false).pairs[0].equal(expected));
  EXPECT_TRUE(seen_by_change(*mixer, 8).equal(expected > 0));
}

TEST(Poolingformer, WithoutASlotTheSecondLevelIsNothing) {
  const auto mixer =
      made_mixer("{window: 2, pooled_window: 0, kernel: 1, stride: 4, pooling: mean}");
  const Tensor x = tokens_of(9), both = run(*mixer, x);
  set(*mixer, "pooled_v_weight", torch::zeros({kHeads * kWidth, kHeads * kWidth}));
  const Tensor alone = run(*mixer, x);
  for (int64_t token = 0; token < 9; ++token)
    EXPECT_EQ(both.select(1, token).equal(alone.select(1, token)), token % 4 != 0)
        << token;
}

TEST(Poolingformer, WeightsAreOfTheRealTokensOfASlot) {
  const Tensor x = tokens_of(4, 1);
  const struct {
    std::vector<int64_t> real;
    bool has_middle;
  } kCases[] = {{{0, 1, 2}, true}, {{0, 1}, true}, {{1, 2}, true}, {{0, 2}, false}};
  for (const std::string pooling : {"ldconv", "mean", "max"}) {
    // One slot, and every token by itself. The fourth token is always padding.
    const auto mixer = made_mixer(
        "{window: 0, pooled_window: 9, kernel: 3, stride: 4, input: mix, pooling: " +
        pooling + "}");
    const Tensor k = heads(*mixer, "pooled_k", x), v = heads(*mixer, "pooled_v", x);
    for (const auto& [tokens, has_middle] : kCases) {
      const Tensor at = torch::tensor(tokens);
      const Tensor real = torch::zeros({1, 4}, torch::kBool).index_fill(1, at, true);
      const Tensor values = v.index_select(2, at);
      Tensor slot = values.mean(2, /*keepdim=*/true);
      if (pooling == "max") slot = std::get<0>(values.max(2, /*keepdim=*/true));
      if (pooling == "ldconv" && has_middle)
        slot = torch::linear(k.slice(2, 1, 2), parameter(*mixer, "pool_weight"))
                   .index_select(3, at)
                   .softmax(3)
                   .matmul(values);
      const Tensor expected =
          projected(*mixer, "out", joined_heads(heads(*mixer, "v", x) + slot));
      EXPECT_TRUE(close(run(*mixer, x, real).index_select(1, at),
                        expected.index_select(1, at), 1e-5))
          << pooling << ", " << at;
    }
  }
}

TEST(Poolingformer, EveryKindEqualsItsDefinition) {
  const Tensor real = torch::arange(23).remainder(7).lt(4).expand({2, -1});
  for (const char* text :
       {"{window: 2, pooled_window: 5, kernel: 3, stride: 5}",
        "{window: 0, pooled_window: 0, kernel: 4, stride: 3, input: mix}",
        "{window: 2, pooled_window: 9, kernel: 2, stride: 1, pooling: mean}",
        "{window: 2, pooled_window: 5, kernel: 5, stride: 3, pooling: max, input: mix}",
        "{window: 2, pooled_window: 5, kernel: 40, stride: 30, input: mix, share: "
        "true}"}) {
    const auto settings = *Value::parse(text).as<Value::Map>();
    const Subject subject(catalogue::poolingformer, {.settings = settings});
    for (const int64_t tokens : {1, 23}) {
      const Tensors x = subject.inputs(2, tokens);
      Pass pass;
      pass.mask.tokens = real.slice(1, 0, tokens);
      const Tensors fast = subject.run_and_gradients(x, pass),
                    defined = subject.reference_and_gradients(x, pass);
      for (size_t i = 0; i < fast.size(); ++i)
        EXPECT_TRUE((fast[i] - defined[i]).abs().le(1e-9).all().item<bool>())
            << text << ", result " << i;
    }
  }
}

TEST(Poolingformer, SharedProjectionsServeBothLevels) {
  const Tensor x = tokens_of(40, 2, 32);
  for (const std::string input : {"stack", "mix"}) {
    const std::string settings =
        "{window: 3, pooled_window: 9, kernel: 3, stride: 2, input: " + input;
    const auto shared = made_mixer(settings + ", share: true}", 32),
               own = made_mixer(settings + "}", 32);
    EXPECT_EQ(shared->parameters().size() + 3, own->parameters().size());
    for (const auto& of : shared->named_parameters()) {
      set(*own, of.key(), of.value());
      if (own->named_parameters().contains("pooled_" + of.key()))
        set(*own, "pooled_" + of.key(), of.value());
    }
    EXPECT_TRUE(run(*shared, x).equal(run(*own, x))) << input;
  }
}

TEST(Poolingformer, RefusesToShareProjectionsThatDoNotFit) {
  EXPECT_EQ(refusal([] { made_mixer("{share: true}"); }),
            "poolingformer: with share, what the first level gives must be as wide as "
            "the embedding, 24, got heads x value_width = 32; or set input to mix");
}

}  // namespace
}  // namespace longspan::testing
