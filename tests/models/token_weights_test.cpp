#include "longspan/models/token_weights.h"

#include "longspan/attention/attention_watch.h"
#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

// The weights of all queries, from the identity as values.
Tensor all_weights(Attention& attention, const AttentionWatch::Seen& seen) {
  Pass pass = seen.pass;
  const int64_t tokens = seen.v.size(2);
  const Tensor identity = torch::eye(tokens, seen.v.options())
                              .expand({seen.v.size(0), seen.v.size(1), tokens, tokens});
  return attention.forward(seen.q, seen.k, identity, pass);
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
          torch::matmul(rows.view({2, 1, 1, kTokens}), all_weights(*attention, seen))
              .squeeze(2);
      EXPECT_TRUE(close(key_shares(seen, rows), expected, 1e-8)) << name;
    });
    Pass pass;
    attention->forward(q, kv[0], kv[1], pass);
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
      layers.push_back(all_weights(seen.attention, seen)[0].mean(0));
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
    const TokenWeights weights = token_weights(model, options, ids);
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
  const TokenWeights weights = token_weights(model, options, some_ids());
  EXPECT_EQ(weights.layers[0].heads.size(0), 5);
  EXPECT_TRUE(close(weights.through, weights.layers[0].heads.mean(0), 1e-12));
}

TEST(TokenWeights, AreRefusedWhereThereAreNone) {
  const auto why = [](TransformerOptions options) {
    options.embedding = 8;
    options.heads = 2;
    Classifier model = make_classifier(options);
    return refusal([&] { token_weights(model, options, some_ids()); });
  };
  EXPECT_NE(
      why({.layers = 2, .attention = "luna"}).find("otherwise than by an attention"),
      std::string::npos);
  EXPECT_NE(why({.layers = 1, .pooling = "pma"}).find("model.pooling: pma"),
            std::string::npos);
  EXPECT_NE(why({.layers = 2, .reversible = true}).find("reversible"),
            std::string::npos);
}

}  // namespace
}  // namespace longspan::testing
