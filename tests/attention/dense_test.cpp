#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> dense() {
  return make<Attention>(catalogue::dense, {.heads = 2, .head_width = 4});
}

TEST(Dense, AveragesTheValuesWhenEveryKeyIsTheSame) {
  const auto x = random_tensors(3, {1, 2, 5, 4});
  Pass pass;
  const auto out = dense()->forward(x[0], torch::ones_like(x[1]), x[2], pass);
  EXPECT_TRUE(close(out, x[2].mean(2, true).expand_as(out)));
}

TEST(Dense, IsSoftmaxOfScaledProducts) {
  const auto x = random_tensors(3, {2, 2, 9, 4});
  Pass pass;
  const auto out = dense()->forward(x[0], x[1], x[2], pass);
  EXPECT_TRUE(close(
      out, (x[0].matmul(x[1].transpose(2, 3)) / 2).softmax(-1).matmul(x[2]), 1e-12));
}

TEST(Dense, AlignsTheLastQueryWithTheLastKey) {
  const auto q = random_tensors(1, {1, 2, 3, 4})[0];
  const auto kv = random_tensors(2, {1, 2, 5, 4}, torch::kDouble, 1);
  Pass pass;
  pass.mask.causal = true;
  const auto out = dense()->forward(q, kv[0], kv[1], pass);
  for (int64_t i = 0; i < 3; ++i) {
    Pass whole;
    const auto seen = i + 3;  // keys 0 .. i + 2
    const auto alone = dense()->forward(q.slice(2, i, i + 1), kv[0].slice(2, 0, seen),
                                        kv[1].slice(2, 0, seen), whole);
    EXPECT_TRUE(close(out.slice(2, i, i + 1), alone)) << "query " << i;
  }
}

TEST(Dense, RepeatsKeyHeadsForGroupsOfQueryHeads) {
  const auto q = random_tensors(1, {2, 6, 7, 4})[0];
  const auto kv = random_tensors(2, {2, 2, 7, 4}, torch::kDouble, 1);
  Pass one, other;
  const auto grouped = dense()->forward(q, kv[0], kv[1], one);
  const auto repeated = dense()->forward(q, kv[0].repeat_interleave(3, 1),
                                         kv[1].repeat_interleave(3, 1), other);
  EXPECT_TRUE(close(grouped, repeated));
}

TEST(Dense, DecodesWithPaddingPositionsAndSegments) {
  const auto x = random_tensors(3, {2, 2, 12, 4});
  const auto tokens = torch::ones({2, 12}, torch::kBool);
  tokens[1].slice(0, 2, 5).fill_(false);
  const auto positions = torch::stack({torch::arange(12) * 2, torch::arange(12) + 3});
  const auto segment = torch::div(torch::arange(12), 7, "floor").expand({2, -1});
  const auto filled = [&](int64_t from, int64_t to) {
    Pass pass;
    pass.mask.causal = true;
    pass.mask.tokens = tokens.slice(1, from, to);
    pass.mask.segment = segment.slice(1, from, to);
    pass.positions = positions.slice(1, from, to);
    return pass;
  };
  Pass whole = filled(0, 12);
  const auto parallel = dense()->forward(x[0], x[1], x[2], whole);
  Record state;
  Tensors outs;
  for (const auto& [from, to] : {std::pair(0, 4), {4, 5}, {5, 11}, {11, 12}}) {
    Pass pass = filled(from, to);
    pass.state = &state;
    outs.push_back(dense()->forward(x[0].slice(2, from, to), x[1].slice(2, from, to),
                                    x[2].slice(2, from, to), pass));
  }
  EXPECT_TRUE(close(torch::cat(outs, 2), parallel));
  EXPECT_EQ(state.tokens, 12);
}

TEST(Dense, LeavesTheStateAsItWasWhenAStepFails) {
  const auto x = random_tensors(3, {1, 2, 3, 4});
  Record state;
  const auto step = [&](bool bad) {
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    if (bad) pass.bias.slopes = torch::ones(7, torch::kDouble);
    return dense()->forward(x[0], x[1], x[2], pass);
  };
  step(false);
  EXPECT_EQ(
      refusal([&] { step(true); }),
      "dense: block attention: source 0: bias slopes must be [H|1] with H = 2, got "
      "[7]");
  EXPECT_EQ(state.tokens, 3);
  EXPECT_EQ(state.get("k").size(2), 3);
}

TEST(Dense, WantsPositionsInAllStepsOrNone) {
  const auto x = random_tensors(3, {1, 2, 3, 4});
  Record state;
  const auto step = [&](const Tensor& positions) {
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    pass.positions = positions;
    return dense()->forward(x[0], x[1], x[2], pass);
  };
  step(torch::arange(3));
  EXPECT_EQ(refusal([&] { step({}); }),
            "dense: positions must be given for all tokens of a decoding state or for "
            "none");
}

TEST(Dense, LetsAContextOfAsManyTokensBeAContext) {
  const auto x = random_tensors(3, {1, 2, 5, 4});
  Pass pass;
  pass.mask.causal = true;
  pass.context.positions = torch::arange(5) + 100;  // all in the future
  EXPECT_TRUE(dense()->forward(x[0], x[1], x[2], pass).eq(0).all().item<bool>());
}

TEST(Dense, DropsWeightsInTrainingOnly) {
  const auto x = random_tensors(3, {1, 2, 33, 4});
  const auto run = [&](bool training, double dropout, uint64_t step) {
    Pass pass;
    pass.draw = Draw(1, step);
    pass.training = training;
    pass.dropout = dropout;
    return dense()->forward(x[0], x[1], x[2], pass);
  };
  const auto plain = run(true, 0, 0);
  EXPECT_TRUE(run(false, 0.5, 0).equal(plain));
  EXPECT_FALSE(run(true, 0.5, 0).equal(plain));
  EXPECT_TRUE(run(true, 0.5, 0).equal(run(true, 0.5, 0)));
  EXPECT_FALSE(run(true, 0.5, 0).equal(run(true, 0.5, 1)));
  auto sum = torch::zeros_like(plain);
  constexpr int kSteps = 400;
  for (int step = 0; step < kSteps; ++step) sum += run(true, 0.5, step);
  EXPECT_LT(largest_error(sum / kSteps, plain), 0.2);
}

TEST(Dense, RefusesWhatDoesNotFit) {
  const auto x = random_tensors(3, {2, 2, 5, 4});
  const auto refusal_of = [&](const std::function<void(Pass&)>& set) {
    return refusal([&] {
      Pass pass;
      set(pass);
      dense()->forward(x[0], x[1], x[2], pass);
    });
  };
  EXPECT_EQ(refusal_of([](Pass& pass) {
              pass.mask.tokens = torch::ones({2, 4}, torch::kBool);
            }),
            "dense: mask.tokens must be [B, N] = [2, 5], got [2, 4]");
  EXPECT_EQ(refusal_of([](Pass& pass) {
              pass.mask.tokens = torch::ones({2, 5});
            }),
            "dense: mask.tokens must be boolean, true where a token counts, got Float");
  EXPECT_EQ(
      refusal_of([](Pass& pass) { pass.positions = torch::arange(4); }),
      "dense: pass.positions must be [n] or [B, n] with n = 5 and B = 2, got [4]");
  EXPECT_EQ(refusal_of([](Pass& pass) { pass.dropout = 1; }),
            "dense: pass.dropout must be in [0, 1), got 1");
  Record record;
  EXPECT_EQ(refusal_of([&](Pass& pass) { pass.state = &record; }),
            "dense: decoding is causal, got pass.state with mask.causal = false");
  EXPECT_EQ(refusal_of([&](Pass& pass) { pass.carry = &record; }),
            "dense: keeps nothing from batch to batch, got pass.carry");
  EXPECT_EQ(refusal_of([](Pass& pass) { pass.positions = torch::rand(5); }),
            "dense: pass.positions must be int32 or int64, got Float");
  EXPECT_EQ(refusal_of([](Pass& pass) {
              pass.mask.segment = torch::rand({2, 5});
            }),
            "dense: mask.segment must be int32 or int64, got Float");
  EXPECT_EQ(refusal_of([](Pass& pass) { pass.context.positions = torch::arange(4); }),
            "dense: context.positions must be [n] or [B, n] with n = 5 and B = 2, got "
            "[4]");
  Pass pass;
  EXPECT_EQ(refusal([&] { dense()->forward(x[0], x[1].slice(3, 0, 3), x[2], pass); }),
            "dense: q, k and v must be [B, H, N, d], [B, Hk, M, d] and [B, Hk, M, dv] "
            "with Hk a divisor of H, got [2, 2, 5, 4], [2, 2, 5, 3] and [2, 2, 5, 4]");
  EXPECT_EQ(
      refusal([&] { dense()->forward(x[0], x[1].to(torch::kFloat), x[2], pass); }),
      "dense: q, k and v must have one type and device, got Double on cpu, Float on "
      "cpu "
      "and Double on cpu");
  EXPECT_EQ(refusal([&] { dense()->forward(x[0][0], x[1], x[2], pass); }),
            "dense: q and k must be [B, H, N, d] and [B, Hk, M, d], got [2, 5, 4] and "
            "[2, 2, 5, 4]");
}

}  // namespace
}  // namespace longspan::testing
