#include "longspan/attention/pass.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Record, KeepsTensorsByNameAndByPart) {
  Record record;
  EXPECT_FALSE(record.get("k").defined());
  record.set("k", torch::ones({2, 3}));
  record.part("inner").set("k", torch::zeros({2, 5}));
  EXPECT_EQ(record.get("k").numel(), 6);
  EXPECT_EQ(record.numel(), 16);
  const auto all = record.all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all.at("inner.k").numel(), 10);
}

TEST(Record, ReordersExamplesForBeams) {
  Record record;
  record.set("k", torch::arange(3).unsqueeze(1));
  record.part("inner").set("v", torch::arange(3) * 10);
  record.select(torch::tensor({2, 2, 0}));
  EXPECT_TRUE(record.get("k").flatten().equal(torch::tensor({2, 2, 0})));
  EXPECT_TRUE(record.part("inner").get("v").equal(torch::tensor({20, 20, 0})));
}

TEST(Record, CopiesAreApart) {
  Record record;
  record.set("k", torch::ones(1));
  Record copy = record;
  copy.set("k", torch::zeros(1));
  EXPECT_EQ(record.get("k").item<float>(), 1);
}

TEST(Record, IsTheSameAfterSavingAndRestoring) {
  Record record;
  record.tokens = 7;
  record.set("k", torch::ones(2));
  record.part("inner").part("deeper").set("v", torch::zeros(3));
  record.part("inner").tokens = 5;
  Record again = Record::restored(record.saved());
  EXPECT_EQ(again.tokens, 7);
  EXPECT_EQ(again.part("inner").tokens, 5);
  EXPECT_TRUE(again.get("k").equal(torch::ones(2)));
  EXPECT_TRUE(again.part("inner").part("deeper").get("v").equal(torch::zeros(3)));
  EXPECT_EQ(again.numel(), record.numel());
}

TEST(Inside, GivesAPartItsOwnRecords) {
  Record state, carry;
  Pass pass;
  pass.state = &state;
  pass.carry = &carry;
  {
    const Inside inside(pass, "heads");
    EXPECT_EQ(pass.state, &state.part("heads"));
    EXPECT_EQ(pass.carry, &carry.part("heads"));
    EXPECT_EQ(pass.choices, nullptr);
  }
  EXPECT_EQ(pass.state, &state);
  EXPECT_EQ(pass.carry, &carry);
}

TEST(Pass, KnowsItsKeysFromTheContextOrItself) {
  Pass pass;
  pass.mask.tokens = torch::tensor({{true, false}});
  EXPECT_TRUE(pass.keys(2, 2).tokens.equal(pass.mask.tokens));
  // Queries are the last of more keys; those before them are real.
  EXPECT_TRUE(pass.keys(2, 4).tokens.equal(torch::tensor({{true, true, true, false}})));
  EXPECT_EQ(refusal([&] { pass.keys(2, 1); }),
            "mask.tokens of 2 queries says nothing about 1 keys of another sequence; "
            "give context.tokens");
  pass.context.positions = torch::arange(2);
  EXPECT_TRUE(pass.crosses());
  EXPECT_FALSE(pass.keys(2, 2).tokens.defined());
  EXPECT_TRUE(pass.keys(2, 2).positions.defined());
  Pass placed;
  placed.positions = torch::arange(2);
  EXPECT_EQ(refusal([&] { placed.keys(2, 3); }),
            "positions and segments of 2 queries say nothing about 3 keys; give a "
            "context with positions");
}

TEST(Pass, AddsLossesOfOneName) {
  Pass pass;
  pass.add_loss("balance", torch::tensor(1.0));
  pass.add_loss("balance", torch::tensor(2.0));
  EXPECT_EQ(pass.losses.at("balance").item<double>(), 3.0);
}

}  // namespace
}  // namespace longspan::testing
