#include <cmath>

#include "longspan/contract/subject.h"
#include "longspan/models/transformer.h"
#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made_for(int64_t longest, const std::string& settings = "{}",
                                    const std::shared_ptr<Shared>& shared = nullptr,
                                    int64_t key_heads = 4) {
  return make<Attention>(
      catalogue::linformer,
      {.heads = 4, .key_heads = key_heads, .head_width = 8, .longest = longest},
      *Value::parse(settings).as<Value::Map>(), shared);
}

// All projections of `attention` [.., k, L] become `value`.
void set_all(Attention& attention, const Tensor& value) {
  const torch::NoGradGuard changing;
  for (Tensor& parameter : attention.parameters()) parameter.copy_(value);
}

Tensor dense_over(const Tensor& q, const Tensor& k, const Tensor& v) {
  Pass pass;
  return made(catalogue::dense)->forward(q, k, v, pass);
}

TEST(Linformer, IsDenseBitForBitWhereProjectionsAreTheIdentity) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  for (const char* sharing : {"none", "headwise", "key_value", "layerwise"}) {
    const auto attention =
        made_for(150, std::string("{projected: 150, sharing: ") + sharing + "}");
    set_all(*attention, torch::eye(150));
    Pass pass;
    EXPECT_TRUE(
        attention->forward(x[0], x[1], x[2], pass).equal(dense_over(x[0], x[1], x[2])))
        << sharing;
  }
}

TEST(Linformer, AttendsToProjectedKeysAndValues) {
  // Heads in pairs share a key head.
  const auto q = random_tensors(1, {2, 4, 20, 8})[0];
  const auto x = random_tensors(2, {2, 2, 20, 8}, torch::kDouble, 1);
  const auto attention =
      made_for(33, "{projected: 5, sharing: none}", nullptr, /*key_heads=*/2);
  convert(*attention, torch::kCPU, torch::kDouble);
  const auto parameters = attention->named_parameters();
  const auto projected = [&](const char* name, const Tensor& y) {  // head by head
    std::vector<Tensor> heads;
    for (int64_t head = 0; head < 2; ++head)
      heads.push_back(torch::einsum(
          "kn,bnd->bkd", {parameters[name][head].slice(1, 0, 20), y.select(1, head)}));
    return torch::stack(heads, 1);
  };
  Pass pass;
  EXPECT_TRUE(close(attention->forward(q, x[0], x[1], pass),
                    dense_over(q, projected("key_projection", x[0]),
                               projected("value_projection", x[1]))));
}

TEST(Linformer, EqualsItsDefinitionWithOtherSettings) {
  for (const char* settings :
       {"{projected: 6, sharing: none}", "{projected: 6, sharing: headwise}",
        "{projected: 6, sharing: layerwise}", "{projected: 700, by: mean}",
        "{projected: 700, by: max}"}) {
    const Subject subject(catalogue::linformer,
                          {.settings = *Value::parse(settings).as<Value::Map>()});
    for (const bool crosses : {false, true}) {
      Pass pass;
      pass.mask.tokens =
          torch::stack({torch::arange(21) >= 0, torch::arange(21).remainder(3) == 1});
      if (crosses) pass.context.tokens = pass.mask.tokens.slice(1, 0, 19);
      const Tensors inputs = subject.inputs(2, 21, /*seed=*/2, crosses ? 19 : 21),
                    got = subject.run_and_gradients(inputs, pass),
                    expected = subject.reference_and_gradients(inputs, pass);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i], 1e-9))
            << settings << (crosses ? ", a context" : "") << ", result " << i;
    }
  }
}

TEST(Linformer, SharesProjectionsAsItIsTold) {
  using Shape = std::vector<int64_t>;
  struct Case {
    const char* sharing;
    size_t count;
    Shape shape;
  };
  const Case cases[] = {{"none", 2, {4, 256, 300}},
                        {"headwise", 2, {1, 256, 300}},
                        {"key_value", 1, {1, 256, 300}},
                        {"layerwise", 1, {1, 256, 300}}};
  for (const auto& [sharing, count, shape] : cases) {
    const auto all =
        made_for(300, std::string("{sharing: ") + sharing + "}")->parameters();
    ASSERT_EQ(all.size(), count) << sharing;
    for (const Tensor& one : all) {
      EXPECT_EQ(one.sizes(), shape) << sharing;
      EXPECT_LE(one.abs().max().item<double>(), 1 / 16.0);
      EXPECT_NEAR(one.std().item<double>(), 1 / 16.0 / std::sqrt(3), 1e-3);
    }
  }
  EXPECT_TRUE(made_for(300, "{by: mean}")->parameters().empty());
}

TEST(Linformer, LayersShareOneProjectionAndAllTeachIt) {
  const auto shared = std::make_shared<Shared>();
  const std::string settings = "{projected: 6, sharing: layerwise}";
  const auto first = made_for(40, settings, shared),
             second = made_for(40, settings, shared);
  EXPECT_TRUE(first->parameters().empty() && second->parameters().empty());
  ASSERT_EQ(shared->parameters().size(), 1u);
  Tensor projection = shared->parameters()[0];
  const auto x = random_tensors(6, {2, 4, 30, 8}, torch::kFloat);
  const auto taught = [&](bool by_first, bool by_second) {
    projection.mutable_grad() = Tensor();
    Pass pass;
    Tensor sum = torch::zeros({});
    if (by_first) sum = sum + first->forward(x[0], x[1], x[2], pass).square().sum();
    if (by_second) sum = sum + second->forward(x[3], x[4], x[5], pass).square().sum();
    sum.backward();
    return projection.grad();
  };
  const Tensor one = taught(true, false), other = taught(false, true);
  EXPECT_FALSE(close(one, other, 1e-2));
  EXPECT_TRUE(close(taught(true, true), one + other, 1e-5));
  EXPECT_EQ(
      refusal([&] { made_for(40, "{projected: 7, sharing: layerwise}", shared); }),
      "linformer: layers that share a projection must have one number of projected "
      "keys and one longest sequence, got 7 and 40 after 6 and 40");
}

TEST(Linformer, AnEncoderHasOneProjectionForAllLayers) {
  TransformerOptions options{.layers = 3, .embedding = 12, .heads = 3, .inner = 20};
  const Tensor ids = torch::arange(1, 8, torch::kLong).unsqueeze(0);
  for (const bool layerwise : {false, true}) {
    options.attention =
        Value::parse(std::string("{name: linformer, projected: 4, sharing: ") +
                     (layerwise ? "layerwise}" : "key_value}"));
    Transformer encoder(options, {.ids = 9, .longest = 7, .cls = true});
    Pass pass;
    encoder.forward(ids, ids > 0, pass).x.square().sum().backward();
    int projections = 0;
    for (const auto& entry : encoder.named_parameters()) {
      if (entry.key().find("projection") == entry.key().npos &&
          entry.key() != "shared.linformer")
        continue;
      ++projections;
      // With the classifier's token.
      EXPECT_EQ(entry.value().sizes(), (std::vector<int64_t>{1, 4, 8}));
      EXPECT_GT(entry.value().grad().abs().min().item<double>(), 0);
    }
    EXPECT_EQ(projections, layerwise ? 1 : 3);
  }
}

TEST(Linformer, PaddingIsAsIfItWereNotThere) {
  const auto x = random_tensors(3, {2, 4, 40, 8});
  Tensor tokens = torch::ones({2, 40}, torch::kBool);
  tokens[0].slice(0, 0, 11).fill_(false);
  tokens[1].slice(0, 3, 40, 4).fill_(false);
  for (const char* settings :
       {"{projected: 6}", "{projected: 6, by: mean}", "{projected: 6, by: max}"}) {
    const auto attention = made_for(50, settings);
    convert(*attention, torch::kCPU, torch::kDouble);
    Pass pass;
    pass.mask.tokens = tokens;
    const Tensor padded = attention->forward(x[0], x[1], x[2], pass);
    for (int64_t example = 0; example < 2; ++example) {
      const Tensor real = tokens[example].nonzero().view(-1);
      const auto alone = [&](const Tensor& y) {
        return y.slice(0, example, example + 1).index_select(2, real);
      };
      Pass bare;
      EXPECT_TRUE(close(alone(padded), attention->forward(alone(x[0]), alone(x[1]),
                                                          alone(x[2]), bare)))
          << settings << ", example " << example;
    }
  }
}

TEST(Linformer, TakesMeansOrTheLargestOfNeighbours) {
  const auto x = random_tensors(3, {2, 4, 14, 8}, torch::kFloat);
  for (const bool largest : {false, true}) {
    // 24 / 6 tokens become one; the last group is short.
    const auto attention =
        made_for(24, largest ? "{projected: 6, by: max}" : "{projected: 6, by: mean}");
    const auto few = [&](const Tensor& y) {
      std::vector<Tensor> groups;
      for (const Tensor& group : y.split(4, 2))
        groups.push_back(largest ? group.amax(2, true) : group.mean(2, true));
      return torch::cat(groups, 2);
    };
    EXPECT_EQ(few(x[1]).size(2), 4);
    Pass pass;
    EXPECT_TRUE(close(attention->forward(x[0], x[1], x[2], pass),
                      dense_over(x[0], few(x[1]), few(x[2])), 1e-5));
  }
}

// Sums in bfloat16 would stop growing after 256 equal terms.
TEST(Linformer, SumsUnrounded) {
  constexpr int64_t kTokens = 4096;
  for (const torch::Device device : devices()) {
    const auto options = torch::TensorOptions(torch::kBFloat16).device(device);
    const auto attention = made_for(kTokens, "{projected: 2}");
    set_all(*attention, torch::full({}, 1.0 / kTokens));
    convert(*attention, device, torch::kBFloat16);
    const Tensor ones = torch::ones({1, 4, kTokens, 8}, options).requires_grad_();
    Pass pass;
    const Tensor out = attention->forward(ones, ones, ones, pass);
    EXPECT_TRUE(out.eq(1).all().item<bool>());
    out.sum().backward();
    // Every value has its share of the outputs; what it has of keys cancels.
    EXPECT_TRUE(close(ones.grad(), torch::ones_like(ones), 0.01));
  }
}

TEST(Linformer, GivesTheSameBitsOnAnyNumberOfThreadsWithPadding) {
  const auto attention = made_for(700, "{projected: 16}");
  const auto x = random_tensors(3, {2, 4, 600, 8}, torch::kFloat);
  EXPECT_TRUE(same_with_any_threads([&] {
    Pass pass;
    pass.mask.tokens = torch::arange(600).remainder(5).ne(2).expand({2, -1});
    Tensors leaves;
    for (const Tensor& one : x) leaves.push_back(one.clone().requires_grad_());
    const Tensor out = attention->forward(leaves[0], leaves[1], leaves[2], pass);
    leaves.push_back(attention->parameters()[0]);
    Tensors results = torch::autograd::grad({out}, leaves, {torch::cos(out.detach())});
    results.push_back(out);
    return results;
  }));
}

TEST(Linformer, RefusesWhatItHasNoPlacesFor) {
  EXPECT_EQ(refusal([] { made(catalogue::linformer); }),
            "linformer: the longest sequence must be known, for the weights of its "
            "places; give Sizes::longest");
  const auto x = random_tensors(1, {1, 4, 11, 8}, torch::kFloat)[0];
  Pass pass;
  EXPECT_EQ(refusal([&] { made_for(10)->forward(x, x, x, pass); }),
            "linformer: made for sequences of at most 10 tokens, got 11");
  pass.mask.causal = true;
  EXPECT_EQ(refusal([&] { made_for(20)->forward(x, x, x, pass); }),
            "linformer: has no causal form, got mask.causal = true");
}

TEST(Linformer, RunsAsInTheLongRangeArena) {
  EXPECT_EQ(preset(catalogue::linformer, "lra"), (Value::Map{{"projected", 16}}));
}

}  // namespace
}  // namespace longspan::testing
