#include "longspan/attention/projected.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.heads = 4, .head_width = 8};

std::shared_ptr<Attention> made(const Mechanism& row, const Value::Map& settings = {}) {
  return make<Attention>(row, kSizes, settings);
}

Tensor flags(int64_t tokens, const std::vector<int64_t>& global) {
  auto all = torch::zeros({1, tokens}, torch::kBool);
  for (const int64_t token : global) all[0][token] = true;
  return all;
}

TEST(Longformer, WithoutGlobalTokensIsSliding) {
  const auto x = random_tensors(3, {2, 4, 100, 8});
  Pass one, other;
  EXPECT_TRUE(made(catalogue::longformer, {{"window", Value(7)}})
                  ->forward(x[0], x[1], x[2], one)
                  .equal(made(catalogue::sliding, {{"window", Value(7)}})
                             ->forward(x[0], x[1], x[2], other)));
}

TEST(Longformer, IsDenseWhereEveryTokenIsGlobal) {
  const auto x = random_tensors(3, {2, 4, 70, 8});
  Pass one, other;
  one.mask.global = torch::ones({2, 70}, torch::kBool);
  EXPECT_TRUE(close(made(catalogue::longformer, {{"window", Value(0)}})
                        ->forward(x[0], x[1], x[2], one),
                    made(catalogue::dense)->forward(x[0], x[1], x[2], other)));
}

TEST(Longformer, GlobalRowsHaveProjectionsOfTheirOwn) {
  const auto x = random_tensors(6, {1, 4, 40, 8});
  Pass pass, rows;
  pass.mask.global = flags(40, {0, 20});
  pass.global = {x[3], x[4], x[5]};
  const auto out = made(catalogue::longformer, {{"window", Value(3)}})
                       ->forward(x[0], x[1], x[2], pass);
  const auto dense = made(catalogue::dense)->forward(x[3], x[4], x[5], rows);
  for (const int64_t token : {0, 20})
    EXPECT_TRUE(close(out.select(2, token), dense.select(2, token)));

  // The columns have the projections of all tokens.
  const auto keys = torch::tensor({0, 7, 8, 9, 10, 11, 12, 13, 20});
  const auto row = made(catalogue::dense);
  Pass context;
  context.context.tokens = torch::ones({1, 9}, torch::kBool);
  EXPECT_TRUE(close(out.slice(2, 10, 11),
                    row->forward(x[0].slice(2, 10, 11), x[1].index_select(2, keys),
                                 x[2].index_select(2, keys), context)));
}

TEST(Longformer, CausalGlobalTokensAreSeenByThoseAfterThem) {
  const auto x = random_tensors(3, {1, 4, 40, 8});
  Pass pass, context;
  pass.mask.causal = true;
  pass.mask.global = flags(40, {4, 30});
  const auto out = made(catalogue::longformer, {{"window", Value(2)}})
                       ->forward(x[0], x[1], x[2], pass);
  const auto keys = torch::tensor({4, 18, 19, 20});
  context.context.tokens = torch::ones({1, 4}, torch::kBool);
  EXPECT_TRUE(close(out.slice(2, 20, 21),
                    made(catalogue::dense)
                        ->forward(x[0].slice(2, 20, 21), x[1].index_select(2, keys),
                                  x[2].index_select(2, keys), context)));
}

TEST(Longformer, ProjectionsOfGlobalTokensBeginAsThoseOfAll) {
  torch::manual_seed(1);
  const auto mixer = make_mixer(catalogue::longformer, kSizes, {{"window", Value(3)}},
                                nullptr, {.bias = true});
  const auto weights = mixer->named_parameters();
  for (const std::string name : {"q", "k", "v"})
    for (const std::string of : {"_weight", "_bias"})
      EXPECT_TRUE(weights["global_" + name + of].equal(weights[name + of]));

  const auto x = torch::randn({1, 30, 32});
  const auto run = [&] {
    Pass pass;
    pass.mask.global = flags(30, {3});
    return mixer->forward(x, pass);
  };
  const auto before = run();
  const torch::NoGradGuard changing;
  mixer->named_parameters()["global_v_weight"].mul_(2);
  const auto changed = (run() != before).any(2)[0].nonzero();
  EXPECT_EQ(changed.numel(), 1);
  EXPECT_EQ(changed.item<int64_t>(), 3);
}

TEST(Longformer, ProjectedEqualsItsDefinition) {
  torch::manual_seed(1);
  const auto mixer = make_mixer(catalogue::longformer, kSizes, {{"window", Value(3)}});
  convert(*mixer, torch::kCPU, torch::kDouble);
  {
    const torch::NoGradGuard changing;
    for (auto& weight : mixer->parameters()) weight.add_(torch::randn_like(weight) / 9);
  }
  const auto x = torch::randn({2, 50, 32}, torch::kDouble);
  Pass one, other;
  one.mask.global = other.mask.global = flags(50, {0, 49}).expand({2, -1});
  EXPECT_TRUE(close(mixer->forward(x, one), mixer->reference(x, other)));
}

}  // namespace
}  // namespace longspan::testing
