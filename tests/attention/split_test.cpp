#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

TEST(Split, GivesEveryGroupOfHeadsToItsMechanism) {
  const auto x = random_tensors(3, {2, 4, 70, 8}, torch::kFloat);
  const auto run = [&](const std::shared_ptr<Attention>& part, int64_t from,
                       int64_t to) {
    Pass pass;
    const auto of = [&](const Tensor& y) { return y.slice(1, from, to); };
    return part->forward(of(x[0]), of(x[1]), of(x[2]), pass);
  };
  const auto out =
      run(made(catalogue::split,
               "{parts: [{name: sliding, window: 4}, dense], heads: [3, 1]}"),
          0, 4);
  EXPECT_TRUE(
      out.slice(1, 0, 3).equal(run(made(catalogue::sliding, "{window: 4}", 3), 0, 3)));
  EXPECT_TRUE(out.slice(1, 3).equal(run(made(catalogue::dense, "{}", 1), 3, 4)));
}

TEST(Split, OfDensePartsIsDense) {
  const auto x = random_tensors(3, {1, 4, 130, 8}, torch::kFloat);
  Pass one, other;
  EXPECT_TRUE(
      made(catalogue::split, "{parts: [dense, dense]}")
          ->forward(x[0], x[1], x[2], one)
          .equal(made(catalogue::dense, "{}")->forward(x[0], x[1], x[2], other)));
}

TEST(Split, GivesItsPartsTheirHeadsOfGlobalProjections) {
  const auto x = random_tensors(6, {1, 4, 30, 8});
  const auto global = torch::arange(30).eq(3).unsqueeze(0);
  const auto run = [&](const std::shared_ptr<Attention>& part) {
    Pass pass;
    pass.mask.global = global;
    pass.global = {x[3], x[4], x[5]};
    return part->forward(x[0], x[1], x[2], pass);
  };
  const auto whole = made(catalogue::longformer, "{window: 2}"),
             parts = made(catalogue::split,
                          "{parts: [{name: longformer, window: 2}, "
                          "{name: longformer, window: 2}]}");
  EXPECT_TRUE(parts->has_global_projections());
  EXPECT_FALSE(made(catalogue::split, "{parts: [sliding]}")->has_global_projections());
  EXPECT_TRUE(close(run(parts), run(whole)));
}

TEST(Split, RefusesWhatItsPartsRefuse) {
  const auto x = random_tensors(3, {1, 4, 9, 8});
  Pass pass;
  pass.mask.global = torch::ones({1, 9}, torch::kBool);
  const auto part = made(catalogue::split, "{parts: [sliding, longformer]}");
  EXPECT_EQ(refusal([&] { part->forward(x[0], x[1], x[2], pass); }),
            "split: sliding: has no global tokens, got mask.global");
}

TEST(Split, RefusesPartsThatDoNotFit) {
  EXPECT_EQ(refusal([] { made(catalogue::split, "{parts: [dense, dense, dense]}"); }),
            "split: the 4 heads cannot be divided evenly among 3 parts");
  EXPECT_EQ(refusal([] { made(catalogue::split, "{parts: []}"); }),
            "split: parts must name at least one mechanism");
  EXPECT_EQ(
      refusal([] { made(catalogue::split, "{parts: [dense, dense], heads: [1, 2]}"); }),
      "split: heads must add up to 4, got 3");
  EXPECT_EQ(refusal([] { made(catalogue::split, "{parts: [mixed]}"); }),
            "split: mixed is a mixer of tokens, so it cannot have some of the heads");
  EXPECT_EQ(refusal([] { made(catalogue::split, "{parts: [dense, image_local_2d]}"); }),
            "split: image_local_2d is causal in the order of " +
                std::string(catalogue::image_local_2d.order) +
                ", not in that of the tokens, so it cannot be wrapped");
  EXPECT_EQ(refusal([] { made(catalogue::split, "{parts: [dense, reformer]}"); }),
            "split: reformer needs other projections than queries, keys and values, so "
            "it cannot have some of the heads");
  const auto samples = [](const char* parts) {
    return made(catalogue::split, parts)->can().samples;
  };
  EXPECT_TRUE(samples("{parts: [dense, ssa]}"));
  EXPECT_FALSE(samples("{parts: [dense, dense]}"));
  EXPECT_TRUE(
      refusal([] {
        made(catalogue::split, "{parts: [densse, dense]}");
      }).starts_with("split: no mechanism called 'densse'; did you mean 'dense'?"));
}

}  // namespace
}  // namespace longspan::testing
