#include "longspan/models/position_bias.h"

#include <cmath>

#include <gtest/gtest.h>

#include "longspan/models/transformer.h"
#include "tests/support/mechanisms.h"

namespace longspan {
namespace {

using testing::close;
using testing::random_tensors;
using testing::refusal;
using testing::Tensor;

Bias made(const PositionBiasOptions& options) {
  return PositionBias(options).of(0, torch::zeros(1, torch::kDouble));
}

TEST(PositionBias, HasThePublishedSlopes) {
  const Tensor eight = made({.kind = "alibi", .heads = 8}).slopes;
  EXPECT_TRUE(close(eight, torch::exp2(-torch::arange(1, 9, torch::kDouble))));
  const Tensor twelve = made({.kind = "alibi", .heads = 12}).slopes;
  EXPECT_TRUE(twelve.slice(0, 0, 8).equal(eight));
  EXPECT_TRUE(
      close(twelve.slice(0, 8), torch::exp2(-0.5 - torch::arange(4, torch::kDouble))));
}

// Distances are query - key; T5 writes key - query.
TEST(PositionBias, HasTheBucketsOfT5) {
  torch::manual_seed(1);
  for (const bool causal : {false, true}) {
    PositionBias module(
        {.kind = "t5", .heads = 3, .causal = causal, .buckets = 32, .reach = 128});
    const Tensor learned = module.parameters()[0];
    const Bias bias = module.of(0, learned);
    EXPECT_EQ(bias.first, causal ? 0 : -128);
    EXPECT_EQ(bias.table.size(1), causal ? 129 : 257);
    const auto expect = [&](int64_t distance, int64_t bucket) {
      EXPECT_TRUE(bias.table.select(1, distance - bias.first).equal(learned[bucket]))
          << "distance " << distance << ", causal " << causal;
    };
    if (causal) {
      const std::vector<std::pair<int64_t, int64_t>> known = {
          {0, 0},   {1, 1},   {15, 15}, {16, 16}, {18, 16},  {19, 17},
          {30, 20}, {50, 24}, {91, 29}, {99, 30}, {127, 31}, {128, 31}};
      for (const auto& [distance, bucket] : known) expect(distance, bucket);
    } else {
      const std::vector<std::pair<int64_t, int64_t>> known = {
          {0, 0},   {1, 1},    {7, 7},    {8, 8},    {11, 8},  {12, 9},
          {20, 10}, {50, 13},  {91, 15},  {128, 15}, {-1, 17}, {-7, 23},
          {-8, 24}, {-20, 26}, {-91, 31}, {-128, 31}};
      for (const auto& [distance, bucket] : known) expect(distance, bucket);
    }
  }
}

// The kernels give a mechanism's bias as its definition does, with the gradients of
// what is learned.
TEST(PositionBias, ServesEveryMechanismThatTakesOne) {
  constexpr int64_t kHeads = 4, kTokens = 45;
  for (const Mechanism* row : mechanisms()) {
    if (!row->can.bias || row->seam() != "attention") continue;
    for (const char* kind : {"alibi", "t5", "grid"}) {
      for (const bool causal : {false, true}) {
        if (row->can.causal == (causal ? Causal::never : Causal::always)) continue;
        torch::manual_seed(3);
        PositionBias module({.kind = kind,
                             .heads = kHeads,
                             .longest = kTokens,
                             .causal = causal,
                             .buckets = 8,
                             .reach = 20,
                             .width = 7});
        convert(module, torch::kCPU, torch::kDouble);
        const auto qkv = random_tensors(4, {2, kHeads, kTokens, 8});
        const auto attention = testing::made(*row, std::string(row->test_settings));
        convert(*attention, torch::kCPU, torch::kDouble);
        attention->eval();
        std::vector<Tensor> outs, slopes;
        for (const bool fused : {true, false}) {
          Pass pass = testing::pass_of(causal);
          pass.bias = module.of(0, qkv[0]);
          const auto form = fused ? &Attention::forward : &Attention::reference;
          outs.push_back(((*attention).*form)(qkv[0], qkv[1], qkv[2], pass));
          if (module.parameters().empty()) continue;
          module.zero_grad();
          (outs.back() * qkv[3]).sum().backward();
          slopes.push_back(module.parameters()[0].grad().clone());
        }
        EXPECT_TRUE(close(outs[0], outs[1], 1e-9)) << row->name << ", " << kind;
        if (!slopes.empty()) {
          EXPECT_TRUE(close(slopes[0], slopes[1], 1e-9)) << row->name << ", " << kind;
        }
      }
    }
  }
}

TEST(PositionBias, IsRefusedByNameWhereItCannotBe) {
  const auto refused = [](const std::vector<std::pair<const char*, const char*>>& set,
                          bool cls = false) {
    TransformerOptions options{.layers = 1, .embedding = 12, .heads = 2};
    ConfigReader reader(fields(options));
    for (const auto& [key, value] : set) reader.set(key, value);
    return refusal(
        [&] { Transformer(options, {.ids = 9, .longest = 20, .cls = cls}); });
  };
  EXPECT_EQ(refused({{"positions", "alibi"}, {"attention", "linear"}}),
            "model.positions: linear takes no bias of scores, which alibi is; use "
            "sinusoidal, learned, rotary or none");
  EXPECT_EQ(refused({{"positions", "rotary"}, {"attention", "star"}}),
            "model.positions: star has no queries and keys that rotary could turn; use "
            "sinusoidal, learned or none");
  EXPECT_EQ(refused({{"positions", "rotary"}, {"head_width", "5"}}),
            "model.positions: rotary needs heads of an even width, got 5");
  EXPECT_EQ(refused({{"positions", "grid"}}),
            "model.positions: grid needs model.grid_width, how many tokens a row has");
  EXPECT_EQ(
      refused({{"positions", "grid"}, {"grid_width", "4"}}, /*cls=*/true),
      "model.positions: grid needs a sequence that begins with its first row, but "
      "1 learned tokens stand in front; use model.pooling: mean and no "
      "model.global_tokens");
  EXPECT_EQ(refused({{"positions", "t5"}, {"t5_buckets", "7"}}),
            "model.t5_buckets must be even and 4 or more, half of them for each "
            "direction, got 7");
  EXPECT_EQ(refused({{"positions", "t5"}, {"t5_reach", "8"}}),
            "model.t5_reach must be more than 8, the distances that have buckets of "
            "their own, got 8");
  EXPECT_EQ(refused({{"positions", "grid"}, {"grid_width", "4"}}), "accepted");
  EXPECT_EQ(refused({{"cutoffs", "[1, x]"}}),
            "model.cutoffs must be a list of whole numbers, got [1, x]");
}

// What is kept or computed again for the backward pass makes no difference.
TEST(PositionBias, LearnsInLayersThatAreComputedAgain) {
  for (const char* kind : {"t5", "grid", "rotary"}) {
    std::vector<std::vector<Tensor>> slopes;
    for (const bool recompute : {false, true}) {
      TransformerOptions options{
          .layers = 3, .embedding = 12, .heads = 2, .positions = kind, .dropout = 0};
      options.grid_width = 5;
      options.recompute = recompute;
      torch::manual_seed(2);
      Transformer model(options, {.ids = 9, .longest = 20});
      const Tensor ids = torch::arange(40, torch::kLong).view({2, 20}).remainder(9);
      Pass pass;
      model.forward(ids, torch::ones_like(ids, torch::kBool), pass)
          .x.sin()
          .sum()
          .backward();
      auto& found = slopes.emplace_back();
      for (const Tensor& parameter : model.parameters())
        found.push_back(parameter.grad());
    }
    for (size_t i = 0; i < slopes[0].size(); ++i)
      EXPECT_TRUE(slopes[0][i].equal(slopes[1][i])) << kind << ", parameter " << i;
  }
}

}  // namespace
}  // namespace longspan
