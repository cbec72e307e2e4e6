#include "longspan/models/token_weights.h"

#include <cmath>

#include "longspan/attention/attention_watch.h"
#include "longspan/base/memory.h"
#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

// The weights of all queries, from the identity as values.
Tensor all_weights(const AttentionWatch::Seen& seen) {
  Pass pass = seen.pass;
  const int64_t tokens = seen.v.size(2);
  const Tensor identity = torch::eye(tokens, seen.v.options())
                              .expand({seen.v.size(0), seen.v.size(1), tokens, tokens});
  return seen.mix(identity, pass);
}

TEST(KeyShares, AreMixturesOfTheRowsOfTheWeights) {
  constexpr int64_t kTokens = 70;
  struct Case {
    const char *name, *settings;
    int64_t key_heads;
  };
  for (const auto& [name, settings, key_heads] :
       {Case{"dense", "{}", 4}, Case{"dense", "{}", 2},
        Case{"sliding", "{window: 8}", 4}, Case{"linear", "{}", 4},
        Case{"linformer", "{projected: 16}", 4},
        Case{"nystrom", "{landmarks: 8}", 4}}) {
    const auto attention = make<Attention>(
        find_mechanism(name),
        {.heads = 4, .key_heads = key_heads, .head_width = 8, .longest = kTokens},
        *Value::parse(settings).as<Value::Map>());
    convert(*attention, torch::kCPU, torch::kDouble);
    const Tensor q = random_tensors(1, {2, 4, kTokens, 8}, torch::kDouble, 3)[0];
    const auto kv = random_tensors(2, {2, key_heads, kTokens, 8}, torch::kDouble, 4);
    Tensor rows = random_tensors(1, {2, kTokens}, torch::kDouble, 5)[0].abs();
    int told = 0;
    const AttentionWatch watch([&](const AttentionWatch::Seen& seen) {
      ++told;
      const Tensor expected =
          torch::matmul(rows.view({2, 1, 1, kTokens}), all_weights(seen)).squeeze(2);
      EXPECT_TRUE(close(key_shares(seen, rows), expected, 1e-8)) << name;
    });
    Pass pass;
    attention->forward(q, kv[0], kv[1], pass);
    EXPECT_EQ(told, 1) << name;
  }
}

// Mixers that weigh values by themselves tell of them too.
TEST(KeyShares, AreThoseOfMixersThatTell) {
  constexpr int64_t kTokens = 22;
  struct Case {
    const char *name, *settings;
  };
  for (const auto& [name, settings] :
       {Case{"synthesizer", "{}"},
        Case{"synthesizer", "{parts: [factorised_dense, random, dot], factor: 3}"},
        Case{"combiner_axial_rowmajor", "{width: 5}"}}) {
    const auto mixer =
        make<Mixer>(find_mechanism(name),
                    {.embedding = 12, .heads = 3, .head_width = 4, .longest = kTokens},
                    *Value::parse(settings).as<Value::Map>());
    convert(*mixer, torch::kCPU, torch::kDouble);
    const Tensor x = random_tensors(1, {2, kTokens, 12}, torch::kDouble, 3)[0];
    const Tensor rows = random_tensors(1, {2, kTokens}, torch::kDouble, 5)[0].abs();
    int told = 0;
    {
      const AttentionWatch watch([&](const AttentionWatch::Seen& seen) {
        ++told;
        const Tensor weights = all_weights(seen);
        EXPECT_TRUE(close(torch::matmul(weights, seen.v), seen.out, 1e-8)) << name;
        EXPECT_TRUE(close(weights.sum(3), torch::ones_like(weights.sum(3)), 1e-8))
            << name;
        EXPECT_TRUE(close(
            key_shares(seen, rows),
            torch::matmul(rows.view({2, 1, 1, kTokens}), weights).squeeze(2), 1e-8))
            << name;
      });
      Pass pass;
      mixer->forward(x, pass);
    }
    EXPECT_EQ(told, 1) << name;
  }
}

Tensor some_ids() { return torch::tensor({3, 1, 4, 1, 5, 2, 6}, torch::kLong); }

Classifier make_classifier(const TransformerOptions& options) {
  torch::manual_seed(7);
  Classifier model(options, /*ids=*/8, /*longest=*/9, /*classes=*/3);
  convert(model, torch::kCPU, torch::kDouble);
  model.eval();
  return model;
}

// The same with the whole matrices of weights.
Tensor rollout_of(Classifier& model, const Tensor& ids, Tensor through) {
  const torch::NoGradGuard without_gradients;
  Tensors layers;
  {
    const AttentionWatch watch([&](const AttentionWatch::Seen& seen) {
      layers.push_back(all_weights(seen)[0].mean(0));
    });
    Pass pass;
    model.forward(ids.unsqueeze(0), torch::ones({1, ids.size(0)}, torch::kBool), pass);
  }
  for (size_t i = layers.size(); i-- > 0;)
    through = torch::matmul(
        through, (layers[i] + torch::eye(layers[i].size(0), torch::kDouble)) / 2);
  return through;
}

TEST(TokenWeights, RollOutThroughAllLayers) {
  for (const char* pooling : {"cls", "mean"}) {
    const TransformerOptions options{
        .layers = 3, .embedding = 12, .heads = 3, .pooling = pooling, .dropout = 0};
    Classifier model = make_classifier(options);
    const Tensor ids = some_ids();
    const TokenWeights weights = token_weights(model, options, {ids})[0];
    ASSERT_EQ(weights.layers.size(), 3u);
    const bool cls = std::string(pooling) == "cls";
    Tensor read = torch::zeros(7 + cls, torch::kDouble);
    if (cls)
      read[0] = 1;
    else
      read.fill_(1.0 / 7);
    const Tensor expected = rollout_of(model, ids, read);
    EXPECT_TRUE(close(weights.through, expected.slice(0, cls), 1e-8)) << pooling;
    EXPECT_NEAR(weights.front + weights.through.sum().item<double>(), 1, 1e-9);
    for (const auto& layer : weights.layers) {
      EXPECT_EQ(layer.mechanism, "dense");
      EXPECT_EQ(layer.heads.sizes(), (std::vector<int64_t>{3, 7}));
      EXPECT_TRUE(close(layer.heads.sum(1) + layer.front,
                        torch::ones(3, torch::kDouble), 1e-9));
    }
    double all = 0;
    for (const double probability : weights.probabilities) all += probability;
    EXPECT_NEAR(all, 1, 1e-12);
  }
}

TEST(TokenWeights, AreTheHeadsInTheMeanOfOneLayer) {
  const TransformerOptions options{
      .layers = 1, .embedding = 8, .heads = 5, .head_width = 4, .dropout = 0};
  Classifier model = make_classifier(options);
  const TokenWeights weights = token_weights(model, options, {some_ids()})[0];
  EXPECT_EQ(weights.layers[0].heads.size(0), 5);
  EXPECT_TRUE(close(weights.through, weights.layers[0].heads.mean(0), 1e-12));
}

// Of heads that read a memory the tokens have the rest.
TEST(TokenWeights, LeaveToAMemoryWhatIsIts) {
  const double memory = 1 / (1 + std::exp(0.5));
  for (const char* attention :
       {"{name: grc, lambda: -0.5}", "{name: grc, lambda: -0.5, mixing: outputs}"})
    for (const int64_t layers : {1, 2}) {
      const TransformerOptions options{.layers = layers,
                                       .embedding = 8,
                                       .heads = 2,
                                       .attention = Value::parse(attention),
                                       .dropout = 0};
      Classifier model = make_classifier(options);
      const TokenWeights weights = token_weights(model, options, {some_ids()})[0];
      for (const auto& layer : weights.layers) {
        ASSERT_TRUE(layer.memory.defined()) << attention;
        EXPECT_TRUE(
            close(layer.memory, torch::full({2}, memory, torch::kDouble), 1e-9));
        EXPECT_TRUE(close(layer.heads.sum(1) + layer.front + layer.memory,
                          torch::ones(2, torch::kDouble), 1e-9))
            << attention;
      }
      EXPECT_NEAR(weights.memory,
                  layers == 1 ? memory : memory / 2 + memory / 2 * (1 - memory / 2),
                  1e-9);
      EXPECT_NEAR(weights.through.sum().item<double>() + weights.front + weights.memory,
                  1, 1e-9);
    }
}

// Each text of a pair is weighed as if it stood alone.
TEST(TokenWeights, AreOfBothTextsOfAPair) {
  for (const char* pooling : {"cls", "mean"}) {
    const TransformerOptions options{.layers = 2,
                                     .embedding = 8,
                                     .heads = 2,
                                     .pooling = pooling,
                                     .head = "concatenation",
                                     .dropout = 0};
    torch::manual_seed(7);
    Classifier pairs(options, 8, 9, 3, Classifier::Reads::pairs);
    convert(pairs, torch::kCPU, torch::kDouble);
    pairs.eval();
    const Tensor one = some_ids(), other = some_ids().slice(0, 2);
    const auto both = token_weights(pairs, options, {one, other});
    ASSERT_EQ(both.size(), 2u);
    EXPECT_EQ(both[0].probabilities, both[1].probabilities);
    EXPECT_EQ(both[1].through.size(0), 5);
    const auto turned = token_weights(pairs, options, {other, one});
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(close(both[i].through, turned[1 - i].through, 1e-9)) << pooling;
      EXPECT_NEAR(both[i].through.sum().item<double>() + both[i].front, 1, 1e-9);
    }
    EXPECT_NE(
        refusal([&] { token_weights(pairs, options, {one}); }).find("even number"),
        std::string::npos);
  }
}

// No matrix of N x N is made.
TEST(TokenWeights, AreOfThousandsOfTokens) {
  constexpr int64_t kTokens = 6000;
  const TransformerOptions options{
      .layers = 2, .embedding = 8, .heads = 2, .attention = "linear", .dropout = 0};
  torch::manual_seed(7);
  Classifier model(options, 8, kTokens, 3);
  model.eval();
  const PeakBytes peak(torch::kCPU);
  const auto weights =
      token_weights(model, options, {torch::arange(kTokens).remainder(7) + 1})[0];
  EXPECT_LT(peak.newly(), 8 * kTokens * kTokens / 10);
  EXPECT_NEAR(weights.through.sum().item<double>() + weights.front, 1, 1e-3);
}

TEST(TokenWeights, AreRefusedWhereThereAreNone) {
  const auto why = [](TransformerOptions options) {
    options.embedding = 8;
    options.heads = 2;
    Classifier model = make_classifier(options);
    return refusal([&] { token_weights(model, options, {some_ids()}); });
  };
  EXPECT_NE(
      why({.layers = 2, .attention = "luna"}).find("otherwise than by an attention"),
      std::string::npos);
  EXPECT_NE(
      why({.layers = 2, .attention = "criss_cross"}).find("more than once, to what it"),
      std::string::npos);
  EXPECT_NE(why({.layers = 1, .pooling = "pma"}).find("model.pooling: pma"),
            std::string::npos);
  EXPECT_NE(why({.layers = 2, .reversible = true}).find("reversible"),
            std::string::npos);
}

}  // namespace
}  // namespace longspan::testing
