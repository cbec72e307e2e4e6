#include "longspan/attention/projected.h"

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{
    .embedding = 12, .heads = 4, .key_heads = 2, .head_width = 5, .value_width = 3};

std::shared_ptr<Mixer> mixer(const ProjectionOptions& options = {}) {
  torch::manual_seed(0);
  auto made = make_mixer(catalogue::dense, kSizes, {}, nullptr, options);
  made->to(torch::kDouble);
  return made;
}

TEST(Projected, HasTheProjectionsOfTheRow) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& item : mixer({.bias = true})->named_parameters())
    shapes[item.key()] = item.value().sizes().vec();
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"q_weight", {20, 12}},   {"q_bias", {20}},      {"k_weight", {10, 12}},
      {"k_bias", {10}},         {"v_weight", {6, 12}}, {"v_bias", {6}},
      {"out_weight", {12, 12}}, {"out_bias", {12}}};
  EXPECT_EQ(shapes, expected);
}

TEST(Projected, StartsXavierUniform) {
  const auto made = make_mixer(catalogue::dense, {.heads = 8, .head_width = 32});
  for (const auto& weight : made->parameters()) {
    const double bound = std::sqrt(6.0 / (weight.size(0) + weight.size(1)));
    EXPECT_LE(weight.abs().max().item<double>(), bound);
    EXPECT_NEAR(weight.std().item<double>(), bound / std::sqrt(3.0), 0.02 * bound);
  }
}

TEST(LinearMaps, CanBeOneProduct) {
  for (const bool has_bias : {false, true}) {
    std::vector<Linear> maps;
    const auto values = random_tensors(7, {7, 12});
    for (int i = 0; i < 3; ++i)
      maps.push_back({.weight = values[i].slice(0, 0, 3 + 2 * i).clone(),
                      .bias = has_bias ? values[3 + i].flatten().slice(0, 0, 3 + 2 * i)
                                       : Tensor()});
    const Tensor x = values[6].slice(0, 0, 6).view({2, 3, 12}).requires_grad_();
    for (const Linear& map : maps) map.weight.requires_grad_();
    const auto inputs = [&] {
      return Tensors{x, maps[0].weight, maps[1].weight, maps[2].weight};
    };
    const auto loss = [](const Tensors& outs) {
      return outs[0].square().sum() + outs[1].sum() + (outs[2] * outs[2].cos()).sum();
    };
    const Tensors outs = together(maps, x),
                  apart = {maps[0](x), maps[1](x), maps[2](x)};
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(close(outs[i], apart[i])) << i;
    const auto slopes = torch::autograd::grad({loss(outs)}, inputs()),
               expected = torch::autograd::grad({loss(apart)}, inputs());
    for (size_t i = 0; i < slopes.size(); ++i)
      EXPECT_TRUE(close(slopes[i], expected[i])) << i;
  }
}

// On CUDA long sequences are projected by one product.
TEST(Projected, IsTheSameOnEveryDevice) {
  torch::manual_seed(0);
  const auto made = make_mixer(catalogue::dense, {.heads = 2, .head_width = 8});
  convert(*made, torch::kCPU, torch::kDouble);
  const Tensor x = random_tensors(1, {2, 20, 16})[0];
  Pass pass;
  const Tensor expected = made->forward(x, pass);
  for (const auto device : devices()) {
    convert(*made, device, torch::kDouble);
    Pass there;
    EXPECT_TRUE(close(made->forward(x.to(device), there).cpu(), expected));
  }
}

TEST(Projected, EqualsItsDefinition) {
  const auto made = mixer();
  const auto x = random_tensors(1, {2, 9, 12})[0];
  for (const bool causal : {false, true}) {
    Pass pass, same;
    pass.mask.causal = same.mask.causal = causal;
    pass.mask.tokens = same.mask.tokens =
        torch::arange(9).lt(torch::tensor({{9}, {4}}));
    const auto out = made->forward(x, pass);
    EXPECT_TRUE(close(out, made->reference(x, same)));
    EXPECT_TRUE(out[1].slice(0, 4).eq(0).all().item<bool>()) << "padding is not zeroed";
  }
}

TEST(Projected, HasTheGradientOfItsOutput) {
  const auto made = mixer({.bias = true});
  EXPECT_TRUE(gradients_agree(
      [&](const Tensors& x) -> Tensors {
        Pass pass;
        return {made->forward(x[0], pass)};
      },
      random_tensors(1, {2, 7, 12})));
}

TEST(Projected, MixesAContextAndProjectsItOnceWhenDecoding) {
  const auto made = mixer();
  const auto x = random_tensors(1, {2, 6, 12})[0];
  const auto context = random_tensors(1, {2, 9, 12}, torch::kDouble, 1)[0];
  Pass whole;
  whole.context.x = context;
  whole.context.tokens = torch::arange(9).lt(torch::tensor({{9}, {4}}));
  const auto parallel = made->forward(x, whole);
  Pass same = whole;
  EXPECT_TRUE(close(parallel, made->reference(x, same)));

  Record state;
  Tensors outs;
  for (int64_t i = 0; i < 6; ++i) {
    Pass pass = whole;
    pass.state = &state;
    // After the first step the context comes from the state.
    if (i > 0) pass.context.x = Tensor();
    outs.push_back(made->forward(x.slice(1, i, i + 1), pass));
    EXPECT_EQ(pass.state, &state);
  }
  EXPECT_TRUE(close(torch::cat(outs, 1), parallel));
}

TEST(Projected, RepeatsBitForBitWithAnyNumberOfThreads) {
  torch::manual_seed(0);
  const auto made = make_mixer(catalogue::dense, {.heads = 4, .head_width = 16}, {},
                               nullptr, {.bias = true});
  const auto x = random_tensors(1, {3, 517, 64}, torch::kFloat)[0].requires_grad_();
  const auto results = [&](int threads) {
    const UseThreads using_threads(threads);
    Pass pass;
    auto sources = made->parameters();
    sources.push_back(x);
    const Tensor out = made->forward(x, pass);
    auto all = torch::autograd::grad({out}, sources, {torch::cos(out.detach())});
    all.push_back(out);
    return all;
  };
  const auto once = results(1);
  for (const int threads : {1, 2, 3, 5}) {
    const auto again = results(threads);
    for (size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(once[i].equal(again[i])) << "result " << i << ", " << threads;
  }
}

TEST(Projected, RefusesCausalStepsOverAContextWithoutPositions) {
  const auto x = random_tensors(1, {2, 1, 12})[0];
  Record state;
  Pass pass;
  pass.mask.causal = true;
  pass.state = &state;
  pass.context.x = random_tensors(1, {2, 9, 12})[0];
  EXPECT_EQ(refusal([&] { mixer()->forward(x, pass); }),
            "dense: causal steps over a context need pass.positions to say which keys "
            "are past");
}

TEST(Projected, TakesNoTokensAndNoExamples) {
  Pass pass, other;
  EXPECT_EQ(mixer()->forward(torch::ones({2, 0, 12}, torch::kDouble), pass).sizes(),
            (std::vector<int64_t>{2, 0, 12}));
  EXPECT_EQ(mixer()->forward(torch::ones({0, 3, 12}, torch::kDouble), other).sizes(),
            (std::vector<int64_t>{0, 3, 12}));
}

TEST(Projected, RefusesAnotherWidth) {
  Pass pass;
  EXPECT_EQ(refusal([&] {
              mixer()->forward(torch::ones({2, 9, 7}, torch::kDouble), pass);
            }),
            "dense: x must be as wide as the embedding, 12, got [2, 9, 7]");
  EXPECT_EQ(refusal([&] {
              mixer()->forward(torch::ones({2, 9}, torch::kDouble), pass);
            }),
            "dense: x must be [B, N, E] of a floating type, got [2, 9]");
}

}  // namespace
}  // namespace longspan::testing
