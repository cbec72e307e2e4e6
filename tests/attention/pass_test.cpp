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

TEST(Pass, AddsLossesOfOneName) {
  Pass pass;
  pass.add_loss("balance", torch::tensor(1.0));
  pass.add_loss("balance", torch::tensor(2.0));
  EXPECT_EQ(pass.losses.at("balance").item<double>(), 3.0);
}

}  // namespace
}  // namespace longspan::testing
