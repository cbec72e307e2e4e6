#include <cmath>

#include "longspan/attention/multihead_block.h"
#include "longspan/base/flops.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 16, .heads = 2, .head_width = 8};

void perturb(torch::nn::Module& module) {
  convert(module, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  for (auto& parameter : module.parameters())
    parameter.add_(0.2 * torch::randn_like(parameter));
}

std::shared_ptr<Mixer> set_transformer(const std::string& settings = "{induced: 5}",
                                       const Sizes& sizes = kSizes) {
  torch::manual_seed(1);
  auto part = make<Mixer>(catalogue::set_transformer, sizes,
                          *Value::parse(settings).as<Value::Map>());
  perturb(*part);
  return part;
}

std::shared_ptr<MultiheadBlock> block(const Sizes& sizes = kSizes) {
  torch::manual_seed(1);
  auto made = std::make_shared<MultiheadBlock>(sizes, MultiheadBlock::Options());
  perturb(*made);
  return made;
}

Tensor forward(Mixer& part, const Tensor& x, const Tensor& real = {}) {
  Pass pass;
  pass.mask.tokens = real;
  return part.forward(x, pass);
}

// MAB(x, y) of the parameters NAME.., by the paper, with dense attention: its scale is
// that of one head, the published one that of both.
Tensor published(const Mixer& part, const std::string& name, const Tensor& x,
                 const Tensor& y, bool norm, double scale) {
  const auto weights = part.named_parameters();
  const auto of = [&](const char* what) { return weights[name + "." + what]; };
  const auto mapped = [&](const std::string& what, const Tensor& z) {
    return torch::linear(z, of((what + "_weight").c_str()),
                         of((what + "_bias").c_str()));
  };
  const auto normed = [&](const std::string& what, const Tensor& z) {
    return norm ? torch::layer_norm(z, {16}, of((what + "_weight").c_str()),
                                    of((what + "_bias").c_str()))
                : z;
  };
  const auto heads = [](const Tensor& z) {
    return z.view({z.size(0), z.size(1), 2, 8}).transpose(1, 2);
  };
  const auto q = mapped("q", x), k = heads(mapped("k", y)), v = heads(mapped("v", y));
  Pass pass;
  pass.context.x = y;
  const auto attended = make<Attention>(catalogue::dense, kSizes)
                            ->forward(heads(q) * (scale * std::sqrt(8.0)), k, v, pass);
  const auto o = normed("norm", q + attended.transpose(1, 2).flatten(2));
  return normed("inner_norm", o + torch::relu(mapped("inner", o)));
}

TEST(SetTransformer, WithoutPointsIsAttentionWithTheResidualOfQueries) {
  const auto x = torch::randn({2, 70, 16}, torch::kDouble);
  for (const bool norm : {true, false}) {
    const std::string end = norm ? "}" : ", norm: false}";
    const auto part = set_transformer("{induced: 0" + end);
    EXPECT_EQ(part->named_parameters().contains("tokens_block.norm_weight"), norm);
    EXPECT_TRUE(close(forward(*part, x),
                      published(*part, "tokens_block", x, x, norm, std::pow(16, -0.5)),
                      1e-12));
    const auto by_head = set_transformer("{induced: 0, scale: head_dim" + end);
    EXPECT_TRUE(close(
        forward(*by_head, x),
        published(*by_head, "tokens_block", x, x, norm, std::pow(8, -0.5)), 1e-12));
  }
}

TEST(SetTransformer, LooksOverTheInducedPoints) {
  const auto part = set_transformer();
  const auto x = torch::randn({2, 70, 16}, torch::kDouble);
  const auto points = part->named_parameters()["points"].expand({2, -1, -1});
  const auto mab = [&](const char* name, const Tensor& a, const Tensor& b) {
    return published(*part, name, a, b, /*norm=*/true, 0.25);
  };
  const auto gathered = [&](const Tensor& y) { return mab("points_block", points, y); };
  EXPECT_TRUE(close(forward(*part, x), mab("tokens_block", x, gathered(x)), 1e-12));
  const auto y = torch::randn({2, 30, 16}, torch::kDouble);
  Pass pass;
  pass.context.x = y;
  EXPECT_TRUE(
      close(part->forward(x, pass), mab("tokens_block", x, gathered(y)), 1e-12));
}

// To the rounding of sums in another order; where the order of keys stays, exactly.
TEST(SetTransformer, DoesNotSeeTheOrder) {
  const auto x = torch::randn({2, 150, 16}, torch::kDouble);
  const auto order = torch::randperm(150);
  const auto permuted = x.index_select(1, order);
  for (const char* settings : {"{induced: 5}", "{induced: 0}"}) {
    const auto part = set_transformer(settings);
    const auto expected = forward(*part, x).index_select(1, order);
    EXPECT_TRUE(close(forward(*part, permuted), expected, 1e-13)) << settings;
    Pass one, other;
    one.context.x = other.context.x = x;
    EXPECT_TRUE(part->forward(permuted, one)
                    .equal(part->forward(x, other).index_select(1, order)))
        << settings;
  }
}

TEST(SetTransformer, DoesNotSeePadding) {
  const auto x = torch::randn({1, 40, 16}, torch::kDouble);
  const auto real = torch::arange(40).remainder(3).ne(0);
  const auto kept = real.nonzero().view(-1);
  for (const char* settings : {"{induced: 5}", "{induced: 0}"}) {
    const auto part = set_transformer(settings);
    EXPECT_TRUE(close(forward(*part, x, real.unsqueeze(0)).index_select(1, kept),
                      forward(*part, x.index_select(1, kept)), 1e-12));
  }
}

// Points are projected once, however many examples there are.
TEST(SetTransformer, ExpandsThePointsWithoutACopy) {
  constexpr int64_t kPoints = 5, kWidth = 16;
  const auto part = set_transformer();
  const auto flops = [&](int64_t examples) {
    const int64_t before = flops_counted();
    forward(*part, torch::ones({examples, 9, kWidth}, torch::kDouble));
    return flops_counted() - before;
  };
  const int64_t an_example = flops(3) - flops(2);
  EXPECT_EQ(flops(1) - an_example, 2 * kPoints * kWidth * kWidth);
  const auto points = part->named_parameters()["points"];
  EXPECT_EQ(points.sizes(), (std::vector<int64_t>{1, kPoints, kWidth}));
}

TEST(SetTransformer, BringsOtherWidthsToTheEmbedding) {
  const Sizes wide{
      .embedding = 20, .heads = 4, .key_heads = 2, .head_width = 8, .value_width = 3};
  const auto part = set_transformer("{induced: 5}", wide);
  const auto weights = part->named_parameters();
  EXPECT_EQ(weights["tokens_block.out_weight"].sizes(), (std::vector<int64_t>{20, 12}));
  EXPECT_FALSE(
      set_transformer()->named_parameters().contains("tokens_block.out_weight"));
  EXPECT_EQ(forward(*part, torch::randn({2, 9, 20}, torch::kDouble)).size(2), 20);
}

TEST(SetTransformer, StandsInForTheWholeBlock) {
  const Keeps keeps = catalogue::set_transformer.keeps;
  EXPECT_FALSE(keeps.residual || keeps.norm || keeps.feed_forward);
  Pass pass = pass_of(/*causal=*/true);
  EXPECT_EQ(
      refusal([&] {
        set_transformer()->forward(torch::randn({1, 9, 16}, torch::kDouble), pass);
      }),
      "set_transformer: has no causal form, got mask.causal = true");
  Pass other;
  other.context.x = torch::randn({1, 9, 15}, torch::kDouble);
  EXPECT_EQ(
      refusal([&] {
        set_transformer()->forward(torch::randn({1, 9, 16}, torch::kDouble), other);
      }),
      "set_transformer: the context must be [B, M, E] = [1, M, 16], got "
      "[1, 9, 15]");
}

TEST(SetTransformer, PictureHasThePointsFirst) {
  const auto sight = set_transformer()->sight(2, /*causal=*/false);
  EXPECT_EQ(sight.memory_rows, 2);
  EXPECT_TRUE(sight.pairs[0].equal(torch::tensor(
      {{1, 0, 1, 1}, {0, 1, 1, 1}, {1, 1, 3, 3}, {1, 1, 3, 3}}, torch::kByte)));
  EXPECT_TRUE(
      set_transformer("{induced: 0}")->sight(2, false).pairs.eq(1).all().item<bool>());
}

TEST(MultiheadBlock, PoolsWithoutSeeingTheOrder) {
  const auto part = block();
  const auto seed = torch::randn({1, 1, 16}, torch::kDouble);
  const auto x = torch::randn({2, 150, 16}, torch::kDouble);
  const auto order = torch::randperm(150);
  const auto pooled = part->forward(seed, x, {});
  EXPECT_EQ(pooled.sizes(), (std::vector<int64_t>{2, 1, 16}));
  EXPECT_TRUE(close(part->forward(seed, x.index_select(1, order), {}), pooled, 1e-13));
}

TEST(MultiheadBlock, OneQueryForAllHasTheGradientOfAll) {
  const auto part = block();
  const auto x = torch::randn({3, 20, 16}, torch::kDouble);
  const auto real = (torch::arange(60) % 4).ne(1).view({3, 20});
  EXPECT_TRUE(gradients_agree(
      [&](const Tensors& in) { return Tensors{part->forward(in[0], in[1], real)}; },
      {torch::randn({1, 4, 16}, torch::kDouble), x}));
  const auto seed = torch::randn({1, 4, 16}, torch::kDouble);
  EXPECT_TRUE(
      close(part->forward(seed, x, real), part->reference(seed, x, real), 1e-12));
}

}  // namespace
}  // namespace longspan::testing
