#include "longspan/attention/projected.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 24, .heads = 4, .head_width = 8};

std::shared_ptr<Mixer> mixed(const std::string& settings) {
  torch::manual_seed(1);
  return make<Mixer>(catalogue::mixed, kSizes,
                     *Value::parse(settings).as<Value::Map>());
}

TEST(Mixed, IsTheMeanOfItsParts) {
  const auto whole = mixed("{parts: [{name: sliding, window: 3}, dense]}");
  Sizes half = kSizes;
  half.heads = 2;
  const auto window = make_mixer(catalogue::sliding, half, {{"window", Value(3)}}),
             dense = make_mixer(catalogue::dense, half);
  const torch::NoGradGuard copying;
  const auto of_whole = whole->named_parameters();
  EXPECT_EQ(of_whole.size(), 8u);  // q, k, v and out for each
  for (const auto& weight : window->named_parameters())
    weight.value().copy_(of_whole["part0." + weight.key()]);
  for (const auto& weight : dense->named_parameters())
    weight.value().copy_(of_whole["part1." + weight.key()]);
  const auto x = torch::randn({2, 50, 24});
  Pass one, other, third;
  EXPECT_TRUE(close(whole->forward(x, one),
                    (window->forward(x, other) + dense->forward(x, third)) / 2, 1e-6));
}

TEST(Mixed, OfOnePartIsThatPart) {
  const auto whole = mixed("{parts: [dense]}");
  torch::manual_seed(1);
  const auto dense = make_mixer(catalogue::dense, kSizes);
  const auto x = torch::randn({2, 50, 24});
  Pass one, other;
  EXPECT_TRUE(whole->forward(x, one).equal(dense->forward(x, other)));
}

TEST(Mixed, RefusesPartsThatDoNotFit) {
  EXPECT_EQ(refusal([] { mixed("{parts: [dense, dense, dense]}"); }),
            "mixed: the 4 heads cannot be divided evenly among 3 parts");
  EXPECT_EQ(refusal([] { mixed("{parts: [star]}"); }),
            "mixed: star has a residual or norms of its own, so it cannot be wrapped");
  EXPECT_EQ(refusal([] { mixed("{parts: [image_local_2d]}"); }),
            "mixed: image_local_2d is causal in the order of " +
                std::string(catalogue::image_local_2d.order) +
                ", not in that of the tokens, so it cannot be wrapped");
  EXPECT_EQ(refusal([] { mixed("{parts: [transformer_xl]}"); }),
            "mixed: transformer_xl keeps something from batch to batch, so it cannot "
            "stand beside others");
}

}  // namespace
}  // namespace longspan::testing
