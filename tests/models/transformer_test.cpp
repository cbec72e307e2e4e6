#include "longspan/models/transformer.h"
#include "longspan/base/flops.h"

#include <cmath>
#include <regex>
#include <utility>

#include <gtest/gtest.h>

#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/models/classifier.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::close;
using testing::devices;
using testing::refusal;
using testing::Tensor;

TransformerOptions small() {
  return {.layers = 2, .embedding = 12, .heads = 3, .inner = 20, .dropout = 0};
}

struct Input {
  Tensor ids, tokens;
};

// Three sequences of 7, 4 and 1 tokens.
Input some_input() {
  const Tensor ids = torch::tensor(
      {{1, 2, 3, 4, 5, 6, 7}, {8, 3, 2, 1, 0, 0, 0}, {5, 0, 0, 0, 0, 0, 0}},
      torch::kLong);
  return {ids, ids > 0};
}

std::shared_ptr<Transformer> make_encoder(const TransformerOptions& options,
                                          bool cls = true) {
  torch::manual_seed(5);
  auto encoder = std::make_shared<Transformer>(
      options, Transformer::Inputs{.ids = 9, .longest = 7, .cls = cls});
  convert(*encoder, torch::kCPU, torch::kDouble);
  return encoder;
}

std::map<std::string, Tensor> named(const torch::nn::Module& module) {
  std::map<std::string, Tensor> tensors;
  for (const auto& entry : module.named_parameters())
    tensors[entry.key()] = entry.value().detach();
  return tensors;
}

// The encoder by its definition, in plain operations, for one sequence without padding.
Tensor defined(const TransformerOptions& options,
               const std::map<std::string, Tensor>& p, const Tensor& ids, bool cls) {
  const int64_t width = options.embedding, heads = options.heads;
  Tensor x = p.at("vocabulary.embedding").index_select(0, ids);
  if (cls) x = torch::cat({p.at("cls").unsqueeze(0), x});
  const int64_t count = x.size(0);
  if (options.positions == "learned") x = x + p.at("positions").slice(0, 0, count);
  if (options.positions == "sinusoidal") {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t t = 0; 2 * t < width; ++t) {
        const double angle =
            static_cast<double>(i) * std::pow(10000.0, -2.0 * static_cast<double>(t) /
                                                           static_cast<double>(width));
        x[i][2 * t] += std::sin(angle);
        x[i][2 * t + 1] += std::cos(angle);
      }
    }
  }
  const auto norm = [&](const Tensor& in, const std::string& name) {
    return torch::layer_norm(in, {width}, p.at(name + ".weight"), p.at(name + ".bias"),
                             options.norm_epsilon);
  };
  Tensor other = x;  // the second stream of reversible layers, last changed is x
  const auto around = [&](const Tensor& in, const std::string& name, const auto& f) {
    if (options.reversible) {
      const Tensor inner = f(norm(in, name + "_norm"));
      const Tensor y =
          other + (options.norm == "pre" ? inner : norm(inner, name + "_norm_behind"));
      other = in;
      return y;
    }
    if (options.norm == "pre") return in + f(norm(in, name + "_norm"));
    if (options.norm == "post") return norm(in + f(in), name + "_norm");
    return in + norm(f(norm(in, name + "_norm")), name + "_norm_behind");
  };
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string at = "layer" + std::to_string(layer) + ".";
    x = around(x, at + "mixer", [&](const Tensor& in) {
      const auto project = [&](const char* which) {
        return in.mm(p.at(at + "mixer." + which + "_weight").t())
            .view({count, heads, -1})
            .transpose(0, 1);
      };
      const Tensor q = project("q"), k = project("k"), v = project("v");
      const Tensor weights = torch::softmax(
          q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2))), -1);
      return weights.matmul(v)
          .transpose(0, 1)
          .reshape({count, -1})
          .mm(p.at(at + "mixer.out_weight").t());
    });
    x = around(x, at + "feed_forward", [&](const Tensor& in) {
      const Tensor hidden = in.mm(p.at(at + "in_weight").t()) + p.at(at + "in_bias");
      const Tensor active = options.activation == "relu" ? torch::relu(hidden)
                            : options.activation == "gelu"
                                ? torch::gelu(hidden)
                                : torch::gelu(hidden, "tanh");
      return active.mm(p.at(at + "out_weight").t()) + p.at(at + "out_bias");
    });
  }
  if (options.reversible) x = (x + other) / 2;
  return options.norm == "post" ? x : norm(x, "norm");
}

TEST(Transformer, EqualsItsDefinitionInEveryForm) {
  const auto [ids, tokens] = some_input();
  for (const char* norm : {"pre", "post", "sandwich"}) {
    for (const char* positions : {"sinusoidal", "learned", "none"}) {
      for (const char* activation : {"gelu", "gelu_tanh", "relu"}) {
        for (const bool cls : {true, false}) {
          TransformerOptions options = small();
          options.norm = norm;
          options.positions = positions;
          options.activation = activation;
          options.head_width = 5;  // free of the embedding
          const auto encoder = make_encoder(options, cls);
          // Norms and biases that matter.
          const torch::NoGradGuard without_gradients;
          for (const Tensor& parameter : encoder->parameters())
            parameter.add_(torch::randn_like(parameter) * 0.1);
          Pass pass;
          const Stream got = encoder->forward(ids, tokens, pass);
          const int64_t lengths[] = {7, 4, 1};
          for (int64_t example = 0; example < 3; ++example) {
            const int64_t length = lengths[example];
            const Tensor expected = defined(options, named(*encoder),
                                            ids[example].slice(0, 0, length), cls);
            EXPECT_TRUE(
                close(got.x[example].slice(0, 0, length + (cls ? 1 : 0)), expected))
                << norm << ", " << positions << ", " << activation << ", example "
                << example;
          }
          EXPECT_EQ(got.tokens.size(1), cls ? 8 : 7);
        }
      }
    }
  }
}

// Outputs, and the gradients of all parameters, are those of the stored form.
TEST(Transformer, IsReversibleWithTheGradientsOfItsDefinition) {
  for (const char* norm : {"pre", "sandwich"}) {
    TransformerOptions options = small();
    options.layers = 6;
    options.norm = norm;
    options.positions = "learned";
    options.reversible = true;
    const auto encoder = make_encoder(options);
    {
      const torch::NoGradGuard changing;
      for (const Tensor& parameter : encoder->parameters())
        parameter.add_(torch::randn_like(parameter) * 0.1);
    }
    std::map<std::string, Tensor> copies;
    for (const auto& [name, parameter] : named(*encoder))
      copies[name] = parameter.clone().requires_grad_();
    const Tensor ids =
        torch::tensor({{1, 2, 3, 4, 5, 6, 7}, {8, 3, 2, 1, 5, 5, 2}}, torch::kLong);
    Pass pass;
    const Tensor got =
        encoder->forward(ids, torch::ones_like(ids, torch::kBool), pass).x;
    const Tensor expected = torch::stack({defined(options, copies, ids[0], true),
                                          defined(options, copies, ids[1], true)});
    EXPECT_TRUE(close(got, expected)) << norm;
    const Tensor weights = torch::randn_like(got);
    (got * weights).sum().backward();
    (expected * weights).sum().backward();
    for (const auto& entry : encoder->named_parameters())
      EXPECT_TRUE(close(entry.value().grad(), copies.at(entry.key()).grad(), 1e-9))
          << norm << ", " << entry.key();
  }
}

TEST(Transformer, DoesNotSeeWhatPaddingHolds) {
  const auto encoder = make_encoder(small());
  const auto [ids, tokens] = some_input();
  const torch::NoGradGuard without_gradients;
  Pass first, second;
  const Tensor a = encoder->forward(ids, tokens, first).x;
  const Tensor b =
      encoder
          ->forward(torch::where(tokens, ids, torch::full_like(ids, 8)), tokens, second)
          .x;
  EXPECT_TRUE(torch::equal(a.select(1, 0), b.select(1, 0)));
}

TEST(Transformer, NeedsNoMaskWhereNothingIsPadding) {
  const torch::NoGradGuard without_gradients;
  const Tensor ids = some_input().ids.slice(0, 0, 1).repeat({2, 1});
  for (const char* attention : {"dense", "linear", "bigbird", "longformer", "reformer",
                                "clustered", "combiner_fixed"}) {
    SCOPED_TRACE(attention);
    TransformerOptions options = small();
    options.layers = 1;
    options.attention = attention;
    const auto encoder = make_encoder(options);
    Pass with, without;
    const Stream there = encoder->forward(ids, ids > 0, with),
                 none = encoder->forward(ids, {}, without);
    EXPECT_LE((there.x - none.x).abs().max().item<double>(), 1e-12);
    EXPECT_TRUE(torch::equal(there.tokens, none.tokens));
    EXPECT_FALSE(without.mask.tokens.defined());
  }
}

// Positions begin anew with each text of a row, also where it begins in a later pass.
TEST(Transformer, DecodesRowsOfSeveralTexts) {
  const Tensor ids = torch::tensor({{1, 2, 3, 4, 5, 6, 7}, {8, 3, 2, 1, 2, 3, 4}}),
               texts = torch::tensor({{0, 0, 0, 1, 1, 1, 2}, {0, 1, 1, 1, 1, 1, 1}}),
               real = ids > 0;
  for (const char* const positions : {"sinusoidal", "learned", "rotary"}) {
    TransformerOptions options = small();
    options.positions = positions;
    torch::manual_seed(5);
    Transformer decoder(options,
                        {.ids = 9, .longest = 7, .cls = false, .causal = true});
    convert(decoder, torch::kCPU, torch::kDouble);
    Pass whole;
    whole.mask.segment = texts;
    const Tensor expected = decoder.forward(ids, real, whole).x;
    Record state;
    std::vector<Tensor> parts;
    for (const auto& [first, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 3}, {3, 4}, {4, 7}}) {
      Pass pass;
      pass.state = &state;
      pass.mask.segment = texts.slice(1, first, end);
      parts.push_back(
          decoder.forward(ids.slice(1, first, end), real.slice(1, first, end), pass).x);
    }
    EXPECT_TRUE(close(torch::cat(parts, 1), expected, 1e-10)) << positions;
  }
}

TEST(Transformer, StartsAsTheLongRangeArenaDoes) {
  torch::manual_seed(1);
  TransformerOptions options{.layers = 1, .embedding = 256, .heads = 4, .inner = 512};
  options.positions = "learned";
  const Classifier model(options, 500, 300, 10);
  const auto p = named(model);
  const auto deviation = [&](const std::string& name) {
    return p.at(name).std().item<double>();
  };
  EXPECT_NEAR(deviation("encoder.vocabulary.embedding"), 1, 0.02);
  EXPECT_NEAR(deviation("encoder.positions"), 0.02, 0.001);
  EXPECT_EQ(p.at("encoder.cls").abs().max().item<float>(), 0);
  for (const char* name : {"mixer.q_weight", "mixer.out_weight", "in_weight"}) {
    const Tensor weight = p.at("encoder.layer0." + std::string(name));
    const double bound =
        std::sqrt(6.0 / static_cast<double>(weight.size(0) + weight.size(1)));
    EXPECT_LE(weight.abs().max().item<double>(), bound + 1e-7) << name;
    EXPECT_NEAR(weight.std().item<double>(), bound / std::sqrt(3), 0.02 * bound)
        << name;
  }
  EXPECT_NEAR(deviation("encoder.layer0.in_bias"), 1e-6, 2e-7);
  EXPECT_NEAR(deviation("hidden_weight"), std::sqrt(1.0 / 256), 0.001);
  EXPECT_LE(p.at("hidden_weight").abs().max().item<double>(),
            2 / 0.8796 * std::sqrt(1.0 / 256));
  EXPECT_EQ(p.at("out_bias").abs().max().item<float>(), 0);
}

// The gradients of all parameters of one training pass.
std::map<std::string, Tensor> gradients(const TransformerOptions& options,
                                        torch::Dtype type = torch::kFloat) {
  torch::manual_seed(7);
  Classifier model(options, 9, 7, 4);
  convert(model, torch::kCPU, type);
  model.train();
  const auto [ids, tokens] = some_input();
  Pass pass;
  pass.training = pass.sampling = true;
  pass.draw = Draw(3, 11);
  const Tensor logits =
      model.forward(ids.repeat({40, 1}), tokens.repeat({40, 1}), pass);
  torch::log_softmax(logits, 1).select(1, 2).square().sum().backward();
  std::map<std::string, Tensor> slopes;
  for (const auto& entry : model.named_parameters())
    slopes[entry.key()] = entry.value().grad();
  return slopes;
}

void expect_equal_bits(const std::map<std::string, Tensor>& a,
                       const std::map<std::string, Tensor>& b) {
  for (const auto& [name, slope] : a) {
    ASSERT_TRUE(slope.defined()) << name;
    EXPECT_TRUE(torch::equal(slope, b.at(name))) << name;
  }
}

TransformerOptions with_dropout() {
  TransformerOptions options = small();
  options.dropout = 0.2;
  options.attention_dropout = 0.1;
  options.positions = "learned";
  return options;
}

TEST(Transformer, RecomputesToTheSameBits) {
  TransformerOptions options = with_dropout();
  for (const char* attention : {"dense", "{name: reformer, chunk: 2, rounds: 2}",
                                "{name: ssa, windows: 3, sigma: 0.4}"}) {
    options.attention = Value::parse(attention);
    options.recompute = false;
    const auto kept = gradients(options);
    options.recompute = true;
    expect_equal_bits(kept, gradients(options));
  }
}

// Going back meets the drops, the buckets and the samples of going forward: otherwise
// what is taken off is not what was added, and gradients are far from differences.
TEST(Transformer, ReversesWithTheSameDrawsAndChoices) {
  for (const char* attention : {"{name: reformer, chunk: 2, rounds: 2}",
                                "{name: ssa, windows: 3, sigma: 0.4}"}) {
    TransformerOptions options = with_dropout();
    options.layers = 5;
    options.reversible = true;
    options.attention = Value::parse(attention);
    const auto encoder = make_encoder(options);
    const auto [ids, tokens] = some_input();
    const auto loss = [&, &ids = ids, &tokens = tokens] {
      Pass pass;
      pass.training = pass.sampling = true;
      pass.draw = Draw(3, 11);
      return encoder->forward(ids, tokens, pass).x.slice(1, 0, 2).sin().sum();
    };
    loss().backward();
    constexpr double kStep = 1e-6;
    for (const char* name :
         {"positions", "layer0.mixer.q_weight", "layer2.in_weight"}) {
      Tensor parameter = encoder->named_parameters()[name];
      const Tensor direction = torch::randn_like(parameter);
      const double slope = (parameter.grad() * direction).sum().item<double>();
      const torch::NoGradGuard moving;
      parameter.add_(direction, kStep);
      const double up = loss().item<double>();
      parameter.sub_(direction, 2 * kStep);
      const double down = loss().item<double>();
      parameter.add_(direction, kStep);
      EXPECT_NEAR((up - down) / (2 * kStep), slope, 1e-5 * (1 + std::abs(slope)))
          << attention << " " << name;
    }
  }
}

// The peak of a forward and a backward pass, in bytes.
int64_t peak_of(int64_t layers, bool reversible) {
  constexpr int64_t kTokens = 3000;
  TransformerOptions options = small();
  options.layers = layers;
  options.embedding = 8;
  options.heads = 1;
  options.inner = 8;
  options.attention = "local";
  options.reversible = reversible;
  torch::manual_seed(5);
  Transformer encoder(options, {.ids = 9, .longest = kTokens, .cls = true});
  const Tensor ids = torch::ones({1, kTokens}, torch::kLong), tokens = ids > 0;
  const PeakBytes peak(torch::kCPU);
  Pass pass;
  encoder.forward(ids, tokens, pass).x.square().sum().backward();
  return peak.newly();
}

TEST(Transformer, ReversibleLayersTakeTheSameMemoryForAnyDepth) {
  peak_of(2, true);  // layouts that are kept
  const auto few = static_cast<double>(peak_of(2, true));
  EXPECT_LT(static_cast<double>(peak_of(8, true)), 1.1 * few);
  EXPECT_LT(static_cast<double>(peak_of(32, true)), 1.1 * few);
  EXPECT_GT(static_cast<double>(peak_of(8, false)), 2.5 * few);
}

TEST(Transformer, ReversibleStreamsStayFloatInBfloat16) {
  TransformerOptions options = small();
  options.layers = 12;
  options.reversible = true;
  const auto encoder = make_encoder(options);
  convert(*encoder, torch::kCPU, torch::kBFloat16);
  const auto [ids, tokens] = some_input();
  const auto slope = [&, &ids = ids, &tokens = tokens] {
    Pass pass;
    const Tensor out = encoder->forward(ids, tokens, pass).x;
    EXPECT_EQ(out.scalar_type(), encoder->parameters()[0].scalar_type());
    out.to(torch::kDouble).select(1, 0).sin().sum().backward();
    Tensor& grad = encoder->named_parameters()["vocabulary.embedding"].mutable_grad();
    return std::exchange(grad, Tensor()).to(torch::kDouble);
  };
  const Tensor low = slope();
  convert(*encoder, torch::kCPU, torch::kDouble);
  const Tensor exact = slope();
  EXPECT_LT((low - exact).norm().item<double>(), 0.05 * exact.norm().item<double>());
}

TEST(Transformer, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const char* pooling : {"cls", "mean", "pma"}) {
    TransformerOptions options = with_dropout();
    options.embedding = 48;
    options.inner = 100;
    options.pooling = pooling;
    std::map<std::string, Tensor> one;
    for (const int threads : {1, 2, 3, 5}) {
      const UseThreads use(threads);
      auto slopes = gradients(options);
      if (one.empty()) one = slopes;
      expect_equal_bits(one, slopes);
    }
  }
}

TEST(Transformer, DrawsOtherDropoutForOtherSteps) {
  const auto encoder = make_encoder(with_dropout());
  const auto [ids, tokens] = some_input();
  std::vector<Tensor> outs;
  for (const uint64_t step : {1, 1, 2}) {
    Pass pass;
    pass.training = true;
    pass.draw = Draw(3, step);
    outs.push_back(encoder->forward(ids, tokens, pass).x);
  }
  EXPECT_TRUE(torch::equal(outs[0], outs[1]));
  EXPECT_FALSE(torch::equal(outs[0], outs[2]));
}

TEST(Transformer, LowRankMapsAreProductsOfTwo) {
  TransformerOptions options = small();
  const auto full = make_encoder(options);
  options.rank = 3;
  const auto low = make_encoder(options);
  const torch::NoGradGuard without_gradients;
  const auto of_low = named(*low);
  int products = 0;
  for (const auto& [name, weight] : named(*full)) {
    const auto down =
        of_low.find(std::regex_replace(name, std::regex("weight$"), "down"));
    const bool is_product = down != of_low.end() && down->first != name;
    weight.copy_(is_product ? of_low.at(name).mm(down->second) : of_low.at(name));
    products += is_product;
  }
  EXPECT_EQ(products, 2 * 6);  // layers; q, k, v, out and two of the feed-forward
  const auto [ids, tokens] = some_input();
  Pass one, other;
  EXPECT_TRUE(
      close(low->forward(ids, tokens, one).x, full->forward(ids, tokens, other).x));
  options.attention = "star";
  EXPECT_EQ(
      refusal([&] { make_encoder(options); }),
      "star: makes its own projections, so rank must be 0 and bias of projections "
      "false, got rank 3 and bias 0");
}

TEST(Transformer, AStackTakesThePlaceOfLayers) {
  const auto [ids, tokens] = some_input();
  const auto shaped = [](int64_t rows) { return std::vector<int64_t>{3, rows, 12}; };
  TransformerOptions options = small();
  options.layers = 1;
  options.attention = Value::parse("{name: funnel, blocks: [1, 1], decoder: 1}");
  Pass pass;
  Stream out = make_encoder(options)->forward(ids, tokens, pass);
  EXPECT_EQ(out.x.sizes(), shaped(8));
  EXPECT_TRUE(out.tokens.slice(1, 1).equal(tokens));
  EXPECT_TRUE(out.tokens.select(1, 0).all().item<bool>());

  options.attention =
      Value::parse("{name: perceiver, latents: 3, layers: 1, repeats: 1}");
  out = make_encoder(options, /*cls=*/false)->forward(ids, tokens, pass = {});
  EXPECT_EQ(out.x.sizes(), shaped(3));
  EXPECT_TRUE(out.tokens.all().item<bool>());
  const char* const no_cls =
      "model.pooling: perceiver leaves no token in front that cls could be read from; "
      "use mean";
  EXPECT_EQ(refusal([&] { make_encoder(options); }), no_cls);
  options.rank = 2;
  EXPECT_EQ(
      refusal([&] { make_encoder(options); }),
      "model.rank: perceiver is a stack of layers of its own, which take no other "
      "than the standard value");
}

TEST(Transformer, AStackStandsAmongOtherLayers) {
  const auto [ids, tokens] = some_input();
  TransformerOptions options = small();
  options.layers = 3;
  options.by_layer =
      Value::parse("[{at: 1, attention: {name: token_learner, tokens: 2}}]");
  const auto encoder = make_encoder(options, /*cls=*/false);
  Pass pass;
  const Stream out = encoder->forward(ids, tokens, pass);
  EXPECT_EQ(out.x.sizes(), (std::vector<int64_t>{3, 2, 12}));
  EXPECT_EQ(out.tokens.sizes(), (std::vector<int64_t>{3, 2}));
  Pass padded;
  const Tensor changed = torch::where(tokens, ids, torch::full_like(ids, 8));
  EXPECT_TRUE(encoder->forward(changed, tokens, padded).x.equal(out.x));
}

TEST(Transformer, DropsInTheBlocksOfAStack) {
  const auto [ids, tokens] = some_input();
  TransformerOptions options = small();
  options.layers = 1;
  options.attention = Value::parse("{name: funnel, blocks: [1], decoder: 0}");
  const auto trained = [&, ids = ids, tokens = tokens](double dropout) {
    options.attention_dropout = dropout;
    const auto encoder = make_encoder(options);
    std::vector<Tensor> outs;
    for (const uint64_t step : {1, 1, 2}) {
      Pass pass;
      pass.training = true;
      pass.draw = Draw(3, step);
      outs.push_back(encoder->forward(ids, tokens, pass).x);
    }
    return outs;
  };
  const auto plain = trained(0), dropped = trained(0.5);
  EXPECT_TRUE(plain[0].equal(plain[2]));
  EXPECT_TRUE(dropped[0].equal(dropped[1]));
  EXPECT_FALSE(dropped[0].equal(dropped[2]));
}

TEST(Transformer, MixesMechanismsByLayer) {
  TransformerOptions options = small();
  options.by_layer = Value::parse("[{at: 1, attention: {name: dense}}]");
  EXPECT_NO_THROW(make_encoder(options));
}

TEST(Transformer, RefusesWhatDoesNotFit) {
  struct Case {
    const char* key;
    const char* value;
    const char* message;
  };
  const Case cases[] = {
      {"heads", "5",
       "model.embedding, 12, is no multiple of model.heads, 5; give model.head_width"},
      {"key_heads", "2", "key_heads"},
      {"attention", "dens", "no mechanism called 'dens'; did you mean 'dense'?"},
      {"attention", "{name: dense, window: 3}", "dense: no setting 'window'"},
      {"attention", "[dense]",
       "model.attention must be the name of a mechanism or {name: .., setting: ..}, "
       "got "
       "[dense]"},
      {"by_layer", "dense", "model.by_layer must be a list of {at: .., attention: ..}"},
      {"by_layer", "[{at: 2, attention: dense}]",
       "model.by_layer: at must be a layer or a range such as 0-5 of the layers 0-1, "
       "got 2"},
      {"by_layer", "[{at: 1-0, attention: dense}]", "got 1-0"},
      {"by_layer", "[{at: 0}]",
       "must be a list of {at: .., attention: ..}, got {at: 0}"},
      {"preset", "nobody", "nobody"},
      {"attention", "axial_decoder",
       "model.layers must be 1 where model.attention is axial_decoder, a stack that "
       "says itself how many layers it has, got 2; model.by_layer puts one"},
      {"by_layer", "[{at: 1, attention: axial_decoder}]",
       "model.attention: axial_decoder has only a causal form, but this model sees all "
       "tokens"},
  };
  for (const Case& bad : cases) {
    TransformerOptions options = small();
    ConfigReader(fields(options)).set(bad.key, bad.value);
    EXPECT_NE(refusal([&] { make_encoder(options); }).find(bad.message),
              std::string::npos)
        << bad.key << ": " << bad.value
        << " gave: " << refusal([&] { make_encoder(options); });
  }
  const auto encoder = make_encoder(small());
  Pass pass;
  const Tensor ids = torch::ones({1, 8}, torch::kLong);
  EXPECT_EQ(refusal([&] { encoder->forward(ids, ids > 0, pass); }),
            "the model is made for sequences of 7 tokens, got 8");
  EXPECT_EQ(refusal([&] { encoder->forward(ids, ids, pass); }),
            "the mask must be bool and of the shape of ids, [1, 8], got [1, 8] Long");
  EXPECT_EQ(refusal([&] { encoder->forward(ids > 0, ids > 0, pass); }),
            "ids must be [B, N] integer, got [1, 8] Bool");
}

TEST(Classifier, AveragesRealTokensOnly) {
  TransformerOptions options = small();
  options.pooling = "mean";
  options.head = "linear";
  torch::manual_seed(2);
  Classifier model(options, 9, 7, 4);
  convert(model, torch::kCPU, torch::kDouble);
  const auto [ids, tokens] = some_input();
  const torch::NoGradGuard without_gradients;
  Pass whole, alone;
  const Tensor together = model.forward(ids, tokens, whole);
  const Tensor second = model.forward(ids.slice(0, 1, 2).slice(1, 0, 4),
                                      tokens.slice(0, 1, 2).slice(1, 0, 4), alone);
  EXPECT_TRUE(close(together.slice(0, 1, 2), second));
}

TEST(Classifier, PoolsRealTokensByAttentionInAnyOrder) {
  TransformerOptions options = small();
  options.pooling = "pma";
  options.positions = "none";
  torch::manual_seed(2);
  Classifier model(options, 9, 7, 4);
  convert(model, torch::kCPU, torch::kDouble);
  EXPECT_FALSE(named(model).contains("encoder.cls"));
  EXPECT_EQ(named(model).at("seed").sizes(), (std::vector<int64_t>{1, 1, 12}));
  const auto [ids, tokens] = some_input();
  const torch::NoGradGuard without_gradients;
  const auto logits = [&, &tokens = tokens](const Tensor& some) {
    Pass pass;
    return model.forward(some, tokens, pass);
  };
  const Tensor together = logits(ids);
  Pass alone;
  EXPECT_TRUE(close(together.slice(0, 1, 2),
                    model.forward(ids.slice(0, 1, 2).slice(1, 0, 4),
                                  tokens.slice(0, 1, 2).slice(1, 0, 4), alone)));
  Tensor others = ids.clone();
  others[0] = ids[0].flip(0);
  others[1].slice(0, 4).fill_(7);  // padding
  EXPECT_TRUE(close(logits(others), together));
  others[1][2] = 7;
  EXPECT_FALSE(close(logits(others), together));
}

// What the head makes of the vectors of two texts, by its definition.
TEST(Classifier, JudgesPairsByBothVectors) {
  TransformerOptions options = small();
  options.pooling = "mean";
  const Tensor ids = torch::cat({some_input().ids, some_input().ids.flip(0)});
  const Tensor tokens = ids > 0;
  for (const char* const head : {"concatenation", "interaction"}) {
    options.head = head;
    torch::manual_seed(5);
    Classifier model(options, 9, 7, 4, Classifier::Reads::pairs);
    convert(model, torch::kCPU, torch::kDouble);
    model.eval();
    const auto p = named(model);
    torch::manual_seed(5);
    TransformerOptions alone = options;
    alone.head = "linear";
    Transformer encoder(alone, {.ids = 9, .longest = 7});
    convert(encoder, torch::kCPU, torch::kDouble);
    encoder.eval();
    Pass pass;
    const auto stream = encoder.forward(ids, tokens, pass);
    const Tensor real = tokens.unsqueeze(2).to(torch::kDouble);
    const Tensor pooled = (stream.x * real).sum(1) / real.sum(1);
    const Tensor a = pooled.slice(0, 0, 3), b = pooled.slice(0, 3);
    const bool interaction = options.head == "interaction";
    Tensor x =
        interaction ? torch::cat({a, b, a * b, a - b}, 1) : torch::cat({a, b}, 1);
    x = torch::relu(torch::linear(x, p.at("hidden_weight"), p.at("hidden_bias")));
    if (!interaction)
      x = torch::relu(torch::linear(x, p.at("second_weight"), p.at("second_bias")));
    x = torch::linear(x, p.at("out_weight"), p.at("out_bias"));
    Pass again;
    EXPECT_TRUE(close(model.forward(ids, tokens, again), x)) << head;
  }
  options.head = "mlp";
  EXPECT_EQ(
      refusal([&] { Classifier(options, 9, 7, 4, Classifier::Reads::pairs); }),
      "model.head must be concatenation or interaction for pairs of texts, got mlp");
  options.head = "interaction";
  EXPECT_EQ(refusal([&] { Classifier(options, 9, 7, 4); }),
            "model.head must be mlp or linear for texts that do not come in pairs, got "
            "interaction");
}

TEST(Classifier, RunsOnEveryDeviceAndInEveryType) {
  for (const torch::Device device : devices()) {
    for (const torch::Dtype type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
      torch::manual_seed(2);
      TransformerOptions options = small();
      if (type != torch::kFloat) options.pooling = "pma";
      Classifier model(options, 9, 7, 4);
      convert(model, device, type);
      const auto [ids, tokens] = some_input();
      Pass pass;
      const Tensor logits = model.forward(ids.to(device), tokens.to(device), pass);
      EXPECT_EQ(logits.scalar_type(), type == torch::kDouble ? type : torch::kFloat);
      EXPECT_TRUE(logits.isfinite().all().item<bool>());
      logits.to(torch::kFloat).sum().backward();
    }
  }
}

// Each id comes so often that sums in bfloat16 would stop growing.
TEST(Classifier, AddsUpGradientsOfEmbeddingsUnrounded) {
  constexpr int64_t kTokens = 1500;
  TransformerOptions options = small();
  options.layers = 1;
  options.positions = "learned";
  options.pooling = "mean";
  const Tensor ids =
      torch::arange(2 * kTokens, torch::kLong).view({2, kTokens}).remainder(3) + 1;
  for (const torch::Device device : devices()) {
    std::vector<Tensor> gradients;
    for (const torch::Dtype type : {torch::kFloat, torch::kBFloat16}) {
      torch::manual_seed(2);
      Classifier model(options, 9, kTokens, 4);
      convert(model, device, torch::kBFloat16);  // the same weights for both
      convert(model, device, type);
      Pass pass;
      const Tensor to = ids.to(device);
      model.forward(to, to > 0, pass).slice(1, 0, 1).sum().backward();
      gradients.push_back(
          model.named_parameters()["encoder.vocabulary.embedding"].grad().to(
              torch::kFloat));
    }
    EXPECT_LT((gradients[1] - gradients[0]).norm().item<double>(),
              0.02 * gradients[0].norm().item<double>());
  }
}

TEST(Classifier, CountsParametersAndArithmetic) {
  // The model of the Long Range Arena's ListOps.
  const TransformerOptions options{
      .layers = 4, .embedding = 512, .heads = 8, .inner = 1024};
  Classifier model(options, 17, 2000, 10);
  constexpr int64_t kWidth = 512, kInner = 1024, kClasses = 10;
  const int64_t layer =
      4 * kWidth * kWidth + 2 * kWidth * kInner + kInner + kWidth + 2 * 2 * kWidth;
  const int64_t head = kWidth * kInner + kInner + kInner * kClasses + kClasses;
  EXPECT_EQ(parameter_count(model),
            17 * kWidth + kWidth + 4 * layer + 2 * kWidth + head);

  const int64_t length = 99, tokens = length + 1;  // with the token at the front
  const int64_t products = tokens * (4 * kWidth * kWidth + 2 * kWidth * kInner);
  const int64_t attention = 2 * tokens * tokens * kWidth;
  const torch::NoGradGuard without_gradients;
  const Tensor ids = torch::zeros({1, length}, torch::kLong);
  Pass pass;
  const int64_t before = flops_counted();
  model.forward(ids, torch::ones_like(ids, torch::kBool), pass);
  EXPECT_EQ(flops_counted() - before,
            2 * (4 * (products + attention) + kWidth * kInner + kInner * kClasses));
}

TEST(Transformer, RefusesReversibleLayersThatCannotBe) {
  const auto refused = [](const char* key, const char* value) {
    TransformerOptions options = small();
    options.layers = 1;
    options.reversible = true;
    ConfigReader(fields(options)).set(key, value);
    return refusal([&] { make_encoder(options); });
  };
  EXPECT_EQ(refused("norm", "post"),
            "model.reversible: a norm after the residual, model.norm: post, cannot be "
            "run backwards; use pre or sandwich");
  EXPECT_EQ(refused("recompute", "true"),
            "model.reversible: activations are computed again anyway, so "
            "model.recompute must be false");
  EXPECT_EQ(refused("attention", "star"),
            "model.reversible: star has a residual of its own, which cannot be run "
            "backwards");
  EXPECT_EQ(refused("attention", "dense"), "accepted");
}

TEST(Transformer, PutsGlobalTokensInFront) {
  TransformerOptions options = small();
  options.attention = Value::parse("{name: longformer, window: 1}");
  options.global_tokens = 3;
  const auto [ids, tokens] = some_input();
  for (const bool cls : {true, false}) {
    const auto encoder = make_encoder(options, cls);
    const auto weights = named(*encoder);
    EXPECT_EQ(weights.at("global").size(0), cls ? 2 : 3);
    EXPECT_EQ(weights.contains("cls"), cls);
    Pass pass;
    const Stream out = encoder->forward(ids, tokens, pass);
    EXPECT_EQ(out.x.sizes(), (std::vector<int64_t>{3, 10, 12}));
    EXPECT_EQ(out.tokens.select(1, 0).all().item<bool>(), cls);
    EXPECT_FALSE(out.tokens.slice(1, 1, 3).any().item<bool>());
    EXPECT_TRUE(out.tokens.slice(1, 3).equal(tokens));
    // A token far away is heard over the global ones.
    Tensor other = ids.clone();
    other[0][6] = 1;
    Pass again;
    EXPECT_FALSE(encoder->forward(other, tokens, again).x[0][3].equal(out.x[0][3]));
  }
  options.attention = "dense";
  Pass pass;
  EXPECT_EQ(refusal([&] { make_encoder(options)->forward(ids, tokens, pass); }),
            "dense: has no global tokens, got mask.global");
}

TEST(Transformer, LeadsASecondStreamPastLayersThatHaveNone) {
  TransformerOptions options = small();
  options.layers = 3;
  options.attention = Value::parse("{name: etc, radius: 1, global: 2}");
  options.by_layer = Value::parse("[{at: 1, attention: dense}]");
  const auto [ids, tokens] = some_input();
  Pass pass;
  const auto encoder = make_encoder(options);
  encoder->forward(ids, tokens, pass);
  EXPECT_EQ(pass.side.x.sizes(), (std::vector<int64_t>{3, 2, 12}));
  EXPECT_TRUE(named(*encoder).contains("shared.etc_global"));
  options.recompute = true;
  EXPECT_EQ(refusal([&] { make_encoder(options); }),
            "model.recompute: etc hands on a second stream, which layers that are "
            "computed again do not");
  options.recompute = false;
  options.reversible = true;
  EXPECT_EQ(refusal([&] { make_encoder(options); }),
            "model.reversible: etc hands on a second stream or a carry, which "
            "reversible layers do not");
}

}  // namespace
}  // namespace longspan
