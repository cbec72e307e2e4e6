#include "longspan/attention/prepare.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

Layout layout_of(const Prepared& prepared) {
  return {prepared.query_count(), prepared.key_count(), prepared.order};
}

TEST(Prepare, TakesQueriesAsTheLastOfTheKeys) {
  const auto q = random_tensors(1, {1, 1, 3, 4})[0];
  const auto k = random_tensors(1, {1, 1, 5, 4})[0];
  Pass pass;
  pass.mask.causal = true;
  const Prepared prepared = prepare(q, k, k, pass);
  EXPECT_EQ(prepared.queries.first, 2);
  EXPECT_TRUE(
      layout_of(prepared).dense(0).equal(torch::ones({3, 5}, torch::kBool).tril(2)));
}

TEST(Prepare, LeavesCausalityToIntervalsWherePositionsAreGiven) {
  const auto x = random_tensors(1, {1, 1, 3, 4})[0];
  Pass pass;
  pass.mask.causal = true;
  pass.positions = torch::tensor({5, 1, 3});
  const Prepared prepared = prepare(x, x, x, pass);
  EXPECT_TRUE(layout_of(prepared).dense(0).all().item<bool>());
  EXPECT_TRUE(prepared.source.from.equal(pass.positions));
}

TEST(Prepare, KeepsThePastInTheState) {
  const auto x = random_tensors(3, {2, 1, 7, 4});
  Record state;
  int64_t seen = 0;
  for (const int64_t count : {3, 1, 3}) {
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    const auto part = [&](int i) { return x[i].slice(2, seen, seen + count); };
    const Prepared prepared = prepare(part(0), part(1), part(2), pass);
    seen += count;
    EXPECT_TRUE(prepared.source.k.equal(x[1].slice(2, 0, seen)));
    EXPECT_TRUE(prepared.source.v.equal(x[2].slice(2, 0, seen)));
    EXPECT_EQ(prepared.queries.first, seen - count);
    EXPECT_FALSE(prepared.source.to.defined());
  }
  EXPECT_EQ(state.tokens, 7);
}

TEST(Prepare, RemembersPaddingThatCameLate) {
  const auto x = random_tensors(1, {1, 1, 2, 4})[0];
  Record state;
  const auto step = [&](const Tensor& tokens) {
    Pass pass;
    pass.mask.causal = true;
    pass.state = &state;
    pass.mask.tokens = tokens;
    return prepare(x, x, x, pass).source.to;
  };
  EXPECT_FALSE(step({}).defined());
  const auto to = step(torch::tensor({{true, false}}));
  EXPECT_TRUE((to > 0).flatten().equal(torch::tensor({true, true, true, false})));
  EXPECT_EQ(step({}).size(-1), 6);
}

TEST(Prepare, DrawsAKeyOnlyToDropWeights) {
  const auto x = random_tensors(1, {1, 1, 2, 4})[0];
  Pass pass;
  pass.dropout = 0.5;
  Draw untouched = pass.draw;
  EXPECT_EQ(prepare(x, x, x, pass).options.dropout.probability, 0);
  pass.training = true;
  const auto dropout = prepare(x, x, x, pass).options.dropout;
  EXPECT_EQ(dropout.probability, 0.5);
  EXPECT_EQ(dropout.key, untouched.key());
}

}  // namespace
}  // namespace longspan::testing
