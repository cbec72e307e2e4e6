#include <cmath>

#include "longspan/attention/mechanism.h"
#include "longspan/contract/contract.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 12, .heads = 4, .key_heads = 2, .head_width = 5};

// In double, with parameters that are not what they begin as.
std::shared_ptr<Stack> made(const std::string& settings) {
  torch::manual_seed(3);
  auto stack = make<Stack>(catalogue::perceiver, kSizes,
                           *Value::parse(settings).as<Value::Map>());
  convert(*stack, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  for (auto& parameter : stack->parameters())
    parameter.add_(0.2 * torch::randn_like(parameter));
  return stack;
}

Tensor tokens(int64_t examples, int64_t count) {
  return random_tensors(1, {examples, count, 12})[0];
}

Stream out_of(Stack& stack, const Tensor& x, bool causal, const Tensor& real = {}) {
  Pass pass;
  pass.mask.causal = causal;
  pass.mask.tokens = real;
  return stack.forward(x, pass);
}

// The blocks of a Perceiver in plain tensor operations.
class Plain {
 public:
  explicit Plain(const Stack& stack) : of_(stack.named_parameters()) {}

  const Tensor& operator[](const std::string& name) const { return of_[name]; }

  // Block `name`, with another sequence as its context if there is one.
  Tensor block(const std::string& name, const Tensor& x, bool causal,
               const Tensor& context = {}) const {
    const Tensor normal = norm(name + ".mixer_norm", x);
    const Tensor seen =
        context.defined() ? norm(name + ".mixer.norm", context) : normal;
    const auto heads = [&](const char* part, const Tensor& y, int64_t count) {
      const Tensor all = torch::linear(y, of_[name + ".mixer." + part]);
      return all.unflatten(2, {count, -1}).transpose(1, 2);
    };
    const Tensor q = heads("q_weight", normal, 4);
    const Tensor k = heads("k_weight", seen, 2).repeat_interleave(2, 1);
    const Tensor v = heads("v_weight", seen, 2).repeat_interleave(2, 1);
    Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(5.0);
    if (causal)
      scores = scores.masked_fill(torch::ones_like(scores).triu(1).to(torch::kBool),
                                  -INFINITY);
    const Tensor mixed =
        x + torch::linear(scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2),
                          of_[name + ".mixer.out_weight"]);
    const Tensor inner =
        torch::gelu(torch::linear(norm(name + ".feed_forward_norm", mixed),
                                  of_[name + ".in_weight"], of_[name + ".in_bias"]));
    return mixed +
           torch::linear(inner, of_[name + ".out_weight"], of_[name + ".out_bias"]);
  }

 private:
  Tensor norm(const std::string& name, const Tensor& x) const {
    return torch::layer_norm(x, {x.size(2)}, of_[name + ".weight"], of_[name + ".bias"],
                             1e-6);
  }

  torch::OrderedDict<std::string, Tensor> of_;
};

TEST(Perceiver, IsLatentsThatLookAtTheTokensAndThenAtEachOther) {
  const auto stack = made("{latents: 3, layers: 2, repeats: 1}");
  const Plain plain(*stack);
  const Tensor x = tokens(2, 9);
  Tensor z = plain["latents"].expand({2, -1, -1});
  z = plain.block("repeat0_cross", z, false, x);
  z = plain.block("repeat0_layer0", z, false);
  z = plain.block("repeat0_layer1", z, false);
  const Stream out = out_of(*stack, x, false);
  EXPECT_TRUE(close(out.x, z));
  EXPECT_FALSE(out.tokens.defined() || out.positions.defined());
}

TEST(Perceiver, RepeatsLookAndLayersWithWeightsOfTheirOwnOrTheSecond) {
  const Tensor x = tokens(2, 9);
  const struct {
    const char* settings;
    const char* third;
  } cases[] = {
      {"{latents: 3, layers: 1, repeats: 3}", "repeat1"},
      {"{latents: 3, layers: 1, repeats: 3, shared_repeats: false}", "repeat2"}};
  for (const auto& [settings, third] : cases) {
    const auto stack = made(settings);
    const Plain plain(*stack);
    Tensor z = plain["latents"].expand({2, -1, -1});
    for (const std::string repeat : {"repeat0", "repeat1", third}) {
      z = plain.block(repeat + "_cross", z, false, x);
      z = plain.block(repeat + "_layer0", z, false);
    }
    EXPECT_TRUE(close(out_of(*stack, x, false).x, z)) << settings;
  }
}

TEST(Perceiver, GivesARowForEveryTokenWhereTokensLookAtTheLatents) {
  const auto stack = made("{latents: 3, layers: 1, repeats: 1, output: tokens}");
  const Plain plain(*stack);
  const Tensor x = tokens(2, 9);
  Tensor z = plain["latents"].expand({2, -1, -1});
  z = plain.block("repeat0_cross", z, false, x);
  z = plain.block("repeat0_layer0", z, false);
  EXPECT_TRUE(close(out_of(*stack, x, false).x, plain.block("decoder", x, false, z)));
  const Tensor real = torch::ones({2, 9}, torch::kBool);
  real[0].slice(0, 4).fill_(false);
  const Stream out = out_of(*stack, x, false, real);
  EXPECT_TRUE(out.tokens.equal(real));
  EXPECT_EQ(out.x[0].slice(0, 4).abs().max().item<double>(), 0);
  EXPECT_EQ(refusal([&] { out_of(*stack, x, true); }),
            "perceiver: output: tokens has no causal form, where rows are the last "
            "latents; give output: latents");
}

TEST(Perceiver, LatentsAreWhatTheyLearnedWhereThereAreNoTokens) {
  const auto stack = made("{latents: 3, layers: 1, repeats: 1}");
  const Tensor x = tokens(2, 9);
  const auto none = torch::zeros({2, 9}, torch::kBool);
  const Tensor out = out_of(*stack, x, false, none).x;
  EXPECT_TRUE(out.isfinite().all().item<bool>());
  EXPECT_TRUE(out[0].equal(out[1]));
}

TEST(Perceiver, CausalWithALatentForEveryTokenIsDenseAndCausal) {
  for (const int64_t latents : {9, 20}) {
    const auto stack =
        made("{layers: 2, repeats: 2, latents: " + std::to_string(latents) + "}");
    const Plain plain(*stack);
    const Tensor x = tokens(2, 9);
    Tensor z = x;
    for (const std::string repeat : {"repeat0", "repeat1"}) {
      z = plain.block(repeat + "_cross", z, true, x);
      z = plain.block(repeat + "_layer0", z, true);
      z = plain.block(repeat + "_layer1", z, true);
    }
    const Stream out = out_of(*stack, x, true);
    EXPECT_TRUE(close(out.x, z)) << latents;
    EXPECT_TRUE(out.positions.equal(torch::arange(9)));
  }
}

// k = 4 and 4 layers in all: a row depends on 12 latents before it.
constexpr char kFew[] = "{latents: 4, layers: 2, repeats: 2}";

TEST(Perceiver, CausalRowsAreThoseOfTheLastTokensWhateverComesAfterThem) {
  const auto stack = made(kFew);
  const Tensor x = tokens(1, 40);
  const Stream whole = out_of(*stack, x, true);
  EXPECT_TRUE(whole.positions.equal(torch::arange(36, 40)));
  for (const int64_t count : {37, 38, 39}) {
    const Stream before = out_of(*stack, x.slice(1, 0, count), true);
    const int64_t common = count - 36;
    EXPECT_TRUE(
        close(before.x.slice(1, 4 - common), whole.x.slice(1, 0, common), 1e-13))
        << count;
  }
}

TEST(Perceiver, CausalRowsDependOnAllTokensUpToTheirOwn) {
  const auto stack = made(kFew);
  const Tensor x = tokens(1, 40).requires_grad_();
  const Tensor rows = out_of(*stack, x, true).x;
  for (int64_t row = 0; row < 4; ++row) {
    const Tensor slope =
        torch::autograd::grad({rows[0][row].sum()}, {x}, {}, /*retain_graph=*/true)[0];
    const Tensor seen = slope[0].ne(0).any(1);
    EXPECT_TRUE(seen.equal(torch::arange(40) <= 36 + row)) << row;
  }
}

TEST(Perceiver, DecodingGivesEveryTokenTheRowItHasAsALastToken) {
  const auto stack = made(kFew);
  const Tensor x = tokens(2, 30);
  Record state;
  std::vector<Tensor> steps;
  for (const auto& [from, to] : {std::pair{0, 11}, {11, 12}, {12, 20}, {20, 30}}) {
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    steps.push_back(stack->forward(x.slice(1, from, to), pass).x);
  }
  const Tensor decoded = torch::cat(steps, 1);
  for (int64_t token = 0; token < 30; ++token)
    EXPECT_TRUE(close(decoded.select(1, token),
                      out_of(*stack, x.slice(1, 0, token + 1), true).x.select(1, -1)))
        << token;
}

TEST(Perceiver, KeepsKeysOfTokensOnceForRepeatsThatShareWeights) {
  const Tensor x = tokens(1, 30);
  const auto kept = [&](const std::string& settings) {
    Record state;
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    made(settings)->forward(x, pass);
    return state.numel();
  };
  const int64_t key = 2 * (5 + 5);  // numbers of a token's key and value
  EXPECT_EQ(kept("{latents: 4, layers: 0, repeats: 1}"), 30 * key);
  EXPECT_EQ(kept("{latents: 4, layers: 0, repeats: 5}"), 2 * 30 * key);
  EXPECT_EQ(kept("{latents: 4, layers: 0, repeats: 5, shared_repeats: false}"),
            5 * 30 * key);
  // Of three tokens in each layer also where they stand.
  EXPECT_EQ(kept("{latents: 4, layers: 2, repeats: 5}"),
            2 * 30 * key + 5 * 2 * 3 * (key + 1));
}

TEST(Perceiver, CausalRowsOfEveryExampleEndAtItsLastRealToken) {
  const auto stack = made(kFew);
  const Tensor x = tokens(4, 30);
  const std::vector<int64_t> lengths = {30, 23, 2, 0};
  const Tensor real = torch::arange(30).unsqueeze(0) <
                      torch::tensor(lengths, torch::kLong).unsqueeze(1);
  const Stream out = out_of(*stack, x, true, real);
  EXPECT_TRUE(out.positions.equal(
      torch::tensor({{26, 27, 28, 29}, {19, 20, 21, 22}, {0, 1, 2, 3}, {0, 1, 2, 3}})));
  EXPECT_TRUE(out.tokens.equal(real.gather(1, out.positions)));
  for (int64_t b = 0; b < 3; ++b) {
    const int64_t rows = std::min<int64_t>(lengths[b], 4);
    const Tensor alone =
        out_of(*stack, x.slice(0, b, b + 1).slice(1, 0, lengths[b]), true).x;
    EXPECT_TRUE(close(out.x[b].slice(0, 0, rows), alone[0], 1e-13)) << b;
    EXPECT_TRUE(out.x[b].slice(0, rows).eq(0).all().item<bool>()) << b;
  }
  EXPECT_TRUE(out.x[3].eq(0).all().item<bool>());
}

TEST(Perceiver, LatentsBeginAsSmallNumbersWithinTwoDeviations) {
  torch::manual_seed(1);
  const auto stack = make<Stack>(catalogue::perceiver, {.embedding = 64},
                                 {{"latents", 100}, {"layers", 1}, {"repeats", 1}});
  const Tensor latents = stack->named_parameters()["latents"];
  EXPECT_EQ(latents.sizes(), (std::vector<int64_t>{100, 64}));
  EXPECT_LE(latents.abs().max().item<double>(), 0.04);
  EXPECT_NEAR(latents.std().item<double>(), 0.0176, 0.001);
}

TEST(Perceiver, KeepsTheContractWithARowForEveryToken) {
  Mechanism row = catalogue::perceiver;
  row.can.causal = Causal::never;
  row.can.decoding = false;
  row.test_settings = "{latents: 5, layers: 1, repeats: 1, output: tokens}";
  for (const int clause : {0, 1, 3, 4, 7, 8, 9}) {
    const Verdict verdict = contract()[clause].check(row, torch::kCPU);
    EXPECT_EQ(verdict.state, Verdict::State::holds)
        << contract()[clause].title << ": " << verdict.detail;
  }
}

}  // namespace
}  // namespace longspan::testing
