#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 16, .heads = 2, .head_width = 8};

std::shared_ptr<Mixer> etc(const std::string& settings) {
  torch::manual_seed(1);
  auto made =
      make<Mixer>(catalogue::etc, kSizes, *Value::parse(settings).as<Value::Map>());
  convert(*made, torch::kCPU, torch::kDouble);
  return made;
}

// With shared projections, a radius that holds all and no labels, both streams are one
// sequence under dense attention.
TEST(Etc, IsDenseOverBothStreamsWhenTheRadiusHoldsAll) {
  const auto part = etc("{radius: 100, relative: false}");
  const auto weights = part->named_parameters();
  const auto x = torch::randn({2, 40, 16}, torch::kDouble);
  const auto z = torch::randn({2, 6, 16}, torch::kDouble);
  Pass pass, dense;
  pass.side.x = z;
  const auto out = part->forward(x, pass);

  const auto all = torch::cat({torch::layer_norm(z, {16}), x}, 1);  // weight 1, bias 0
  const auto heads = [&](const std::string& name) {
    return all.matmul(weights[name + "_weight"].t())
        .view({2, 46, 2, 8})
        .transpose(1, 2);
  };
  const auto attended = make<Attention>(catalogue::dense, kSizes)
                            ->forward(heads("q"), heads("k"), heads("v"), dense)
                            .transpose(1, 2)
                            .flatten(2);
  EXPECT_TRUE(close(out, attended.slice(1, 6).matmul(weights["out_weight"].t())));
}

TEST(Etc, HandsTheGlobalStreamOn) {
  const auto part = etc("{radius: 2}");
  const auto x = torch::randn({1, 20, 16}, torch::kDouble);
  Pass pass;
  part->forward(x, pass);
  EXPECT_EQ(pass.side.x.sizes(), (std::vector<int64_t>{1, 64, 16}));
  // What is far away arrives in the second layer, over the global stream.
  const auto far = [&](double change) {
    auto other = x.clone();
    other[0][19] += change;
    Pass two;
    const auto first = part->forward(other, two);
    const auto second = part->forward(x, two);
    return std::pair(first[0][0], second[0][0]);
  };
  EXPECT_TRUE(far(0).first.equal(far(1).first));
  EXPECT_FALSE(far(0).second.equal(far(1).second));
}

TEST(Etc, LabelsTheTokensOfAGlobalToken) {
  const auto part = etc("{radius: 3, distance: 2}");
  const auto x = torch::randn({2, 30, 16}, torch::kDouble);
  const auto z = torch::randn({2, 3, 16}, torch::kDouble);
  const auto filled = [&](bool places) {
    Pass pass;
    pass.side.x = z;
    if (places) pass.side.positions = torch::tensor({0, 10, 25});
    return pass;
  };
  Pass one = filled(true), other = filled(true), without = filled(false);
  const auto out = part->forward(x, one);
  EXPECT_TRUE(close(out, part->reference(x, other)));
  EXPECT_TRUE(close(one.side.x, other.side.x));
  EXPECT_FALSE(out.equal(part->forward(x, without)));

  Pass padded = filled(true), defined = filled(true);
  padded.side.tokens = defined.side.tokens =
      torch::tensor({true, true, true, true, false, true}).view({2, 3});
  EXPECT_TRUE(close(part->forward(x, padded), part->reference(x, defined)));
}

// A large label makes the softmax choose one pair: the token that label is of.
TEST(Etc, LabelsAreThoseOfDistanceAndMembership) {
  const auto part = etc("{radius: 3, distance: 2}");
  const auto weights = part->named_parameters();
  const torch::NoGradGuard changing;
  const auto x = torch::randn({1, 30, 16}, torch::kDouble);
  const auto z = torch::randn({1, 3, 16}, torch::kDouble);
  const auto value = [&](const Tensor& row) {
    return row.matmul(weights["v_weight"].t()).matmul(weights["out_weight"].t());
  };
  const auto run = [&](const std::string& labels, int64_t entry) {
    weights[labels].zero_();
    weights[labels].select(1, entry).fill_(1e4);
    Pass pass;
    pass.side.x = z;
    pass.side.positions = torch::tensor({0, 10, 25});
    const auto out = part->forward(x, pass);
    weights[labels].zero_();
    return out[0];
  };
  // Distance of the query less that of the key: entry 1 of -2 .. 2 is -1, the next.
  const auto next = run("long_long_labels", 1);
  for (const int64_t token : {0, 7, 28})
    EXPECT_TRUE(close(next[token], value(x[0][token + 1]), 1e-8)) << token;
  const auto own = run("long_global_labels", 1);
  const auto normal = torch::layer_norm(z, {16})[0];
  for (const auto& [token, global] :
       {std::pair(0, 0), {9, 0}, {10, 1}, {24, 1}, {25, 2}})
    EXPECT_TRUE(close(own[token], value(normal[global]), 1e-8)) << token;
}

TEST(Etc, MayHaveProjectionsForEveryDirection) {
  const auto part = etc("{radius: 3, shared: false}");
  EXPECT_EQ(etc("{}")->parameters().size() + 7, part->parameters().size());
  const auto x = torch::randn({1, 30, 16}, torch::kDouble);
  Pass one, other;
  EXPECT_TRUE(close(part->forward(x, one), part->reference(x, other)));
}

TEST(Etc, RefusesAStreamOfAnotherWidth) {
  Pass pass;
  pass.side.x = torch::randn({1, 4, 15}, torch::kDouble);
  EXPECT_EQ(refusal([&] {
              etc("{}")->forward(torch::randn({1, 9, 16}, torch::kDouble), pass);
            }),
            "etc: the second stream must be [B, G, E] = [1, G, 16], got [1, 4, 15]");
}

}  // namespace
}  // namespace longspan::testing
