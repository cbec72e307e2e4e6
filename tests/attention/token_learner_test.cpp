#include "longspan/attention/mechanism.h"
#include "longspan/contract/contract.h"
#include "longspan/models/block.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 12, .heads = 4, .head_width = 5};

std::shared_ptr<Stack> fresh(const std::string& settings) {
  torch::manual_seed(3);
  auto stack = make<Stack>(catalogue::token_learner, kSizes,
                           *Value::parse(settings).as<Value::Map>());
  convert(*stack, torch::kCPU, torch::kDouble);
  return stack;
}

// With parameters that are not what they begin as.
std::shared_ptr<Stack> made(const std::string& settings) {
  const auto stack = fresh(settings);
  const torch::NoGradGuard changing;
  for (auto& parameter : stack->parameters())
    parameter.add_(0.3 * torch::randn_like(parameter));
  return stack;
}

Tensor tokens(int64_t examples, int64_t count) {
  return random_tensors(1, {examples, count, 12})[0];
}

Stream out_of(Stack& stack, const Tensor& x, const Tensor& real = {}) {
  Pass pass;
  pass.mask.tokens = real;
  return stack.forward(x, pass);
}

using Parameters = torch::OrderedDict<std::string, Tensor>;

Tensor norm(const Parameters& of, const std::string& name, const Tensor& x) {
  return torch::layer_norm(x, {x.size(2)}, of[name + ".weight"], of[name + ".bias"],
                           1e-6);
}

Tensor linear(const Parameters& of, const std::string& name, const Tensor& x) {
  const Tensor* bias = of.find(name + "_bias");
  return torch::linear(x, of[name + "_weight"], bias ? *bias : Tensor());
}

// The learned tokens of version 1.1.
Tensor by_softmax(const Parameters& of, const Tensor& x) {
  const Tensor scores =
      linear(of, "out", torch::gelu(linear(of, "in", norm(of, "norm", x))));
  return scores.softmax(1).transpose(1, 2).matmul(x);
}

TEST(TokenLearner, IsMeansWeightedByASoftmaxOverAllTokens) {
  const auto stack = made("{tokens: 3, hidden: 6, layers: 0}");
  const Tensor x = tokens(2, 70);
  const Stream out = out_of(*stack, x);
  EXPECT_TRUE(close(out.x, by_softmax(stack->named_parameters(), x)));
  EXPECT_FALSE(out.tokens.defined() || out.positions.defined());
}

TEST(TokenLearner, IsMeansWeightedBySigmoidsOfConvolutions) {
  const auto stack = made("{tokens: 3, version: convolution, layers: 0}");
  const auto of = stack->named_parameters();
  const Tensor x = tokens(2, 70);
  Tensor y = norm(of, "norm", x).transpose(1, 2);
  for (int i = 0; i < 4; ++i) {
    if (i > 0) y = torch::gelu(y);
    // [3k, n] to [k, n, 3]
    const Tensor kernel = of["convolution" + std::to_string(i) + "_weight"];
    y = torch::conv1d(y, kernel.view({3, 3, -1}).permute({1, 2, 0}), /*bias=*/{},
                      /*stride=*/1, /*padding=*/1);
  }
  EXPECT_TRUE(close(out_of(*stack, x).x, y.sigmoid().matmul(x) / 70));
}

TEST(TokenLearner, MeansAreOfRealTokensWhereverTheyStand) {
  const auto stack = made("{tokens: 3, hidden: 6, layers: 1}");
  const Tensor x = tokens(1, 30);
  const auto real = torch::arange(30).remainder(3).ne(1).unsqueeze(0);
  const Tensor together = x.index_select(1, real[0].nonzero().view(-1));
  EXPECT_TRUE(close(out_of(*stack, x, real).x, out_of(*stack, together).x));
}

TEST(TokenLearner, ConvolutionsEndWherePaddingBegins) {
  const auto stack = made("{tokens: 3, version: convolution}");
  const Tensor x = tokens(1, 30);
  const auto at = torch::arange(30).unsqueeze(0);
  const auto real = at.ge(5).logical_and(at.lt(21));
  EXPECT_TRUE(close(out_of(*stack, x, real).x, out_of(*stack, x.slice(1, 5, 21)).x));
}

TEST(TokenLearner, LearnsNothingOfAnExampleWithoutTokens) {
  for (const std::string version : {"mlp", "convolution"}) {
    for (const std::string layers : {"0", "2"}) {
      const auto stack =
          made("{tokens: 3, version: " + version + ", layers: " + layers + "}");
      const auto real = torch::ones({2, 9}, torch::kBool);
      real[1].fill_(false);
      const Stream out = out_of(*stack, tokens(2, 9), real);
      EXPECT_TRUE(out.tokens.equal(torch::tensor({{true, true, true},  //
                                                  {false, false, false}})));
      EXPECT_TRUE(out.x[0].ne(0).all().item<bool>());
      EXPECT_TRUE(out.x[1].eq(0).all().item<bool>()) << version << " " << layers;
    }
  }
}

TEST(TokenLearner, FusedIsTheIdentityAtFirstAndHasARowForEveryToken) {
  const auto stack = fresh("{tokens: 3, layers: 1, fuse: true}");
  const Tensor x = tokens(2, 30);
  const auto real = torch::ones({2, 30}, torch::kBool);
  real[1].slice(0, 20).fill_(false);
  const Stream out = out_of(*stack, x, real);
  EXPECT_TRUE(out.x.equal(x.masked_fill(real.logical_not().unsqueeze(2), 0)));
  EXPECT_TRUE(out.tokens.equal(real));
}

TEST(TokenLearner, FusesByGatesOfTheTokens) {
  const auto stack = made("{tokens: 3, hidden: 6, layers: 0, fuse: true}");
  const auto of = stack->named_parameters();
  const Tensor x = tokens(2, 30), learned = by_softmax(of, x);
  const Tensor mixed =
      norm(of, "mixed_norm",
           linear(of, "mix", norm(of, "learned_norm", learned).transpose(1, 2))
               .transpose(1, 2));
  const Tensor gates =
      linear(of, "fuse_out",
             torch::gelu(linear(of, "fuse_in", norm(of, "fuse_norm", x))))
          .sigmoid();
  EXPECT_TRUE(close(out_of(*stack, x).x, x + gates.matmul(mixed)));
}

TEST(TokenLearner, LayersAreOfTheMechanismThatIsGiven) {
  const auto stack =
      made("{tokens: 3, before: 2, layers: 1, attention: {name: local, block: 4}}");
  std::vector<std::string> names;
  for (const auto& child : stack->named_children())
    if (const auto block = std::dynamic_pointer_cast<Block>(child.value())) {
      EXPECT_EQ(block->mechanism().name, "local");
      names.push_back(child.key());
    }
  EXPECT_EQ(names, (std::vector<std::string>{"before0", "before1", "layer0"}));
}

TEST(TokenLearner, LayersBeforeSeeAllTokensAndLayersAfterTheLearnedOnes) {
  const auto whole = made("{tokens: 3, hidden: 6, before: 1, layers: 1}");
  const auto block_of = [&](const std::string& name) {
    return std::dynamic_pointer_cast<Block>(whole->named_children()[name]);
  };
  const Tensor x = tokens(2, 30);
  Pass pass;
  const Tensor all = block_of("before0")->forward(x, pass);
  const Tensor learned = by_softmax(whole->named_parameters(), all);
  EXPECT_TRUE(close(out_of(*whole, x).x, block_of("layer0")->forward(learned, pass)));
}

TEST(TokenLearner, RefusesWhatCannotBeALayerInside) {
  EXPECT_EQ(refusal([] { fresh("{attention: axial_decoder}"); }),
            "token_learner: axial_decoder: fills the seam stack, asked for mixer");
  EXPECT_EQ(
      refusal([] { fresh("{attention: etc}"); }),
      "token_learner: attention: etc cannot be a layer inside, as it has a second "
      "stream or a carry");
}

void expect_kept(const char* settings) {
  Mechanism row = catalogue::token_learner;
  row.test_settings = settings;
  for (const int clause : {0, 1, 3, 4, 7, 8, 9}) {
    const Verdict verdict = contract()[clause].check(row, torch::kCPU);
    EXPECT_EQ(verdict.state, Verdict::State::holds)
        << contract()[clause].title << ": " << verdict.detail;
  }
}

TEST(TokenLearner, KeepsTheContractByConvolutions) {
  expect_kept("{tokens: 5, version: convolution, layers: 0}");
}

TEST(TokenLearner, KeepsTheContractFusedAndWithLayersBefore) {
  expect_kept("{tokens: 5, hidden: 7, before: 1, layers: 0, fuse: true}");
}

}  // namespace
}  // namespace longspan::testing
