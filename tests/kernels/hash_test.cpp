#include "longspan/kernels/hash.h"

#include "tests/support/any_threads.h"

namespace longspan::testing {
namespace {

TEST(SignHash, SaysOnWhichSideOfEveryPlane) {
  const auto x = random_tensors(1, {2, 3, 50, 8})[0];
  for (const bool by_head : {false, true})
    for (const bool with_offsets : {false, true}) {
      auto planes = random_tensors(1, {3, 63, 8}, torch::kDouble, 1)[0];
      auto offsets = random_tensors(1, {3, 63}, torch::kDouble, 2)[0];
      if (!by_head) planes = planes[1], offsets = offsets[1];
      auto distance = x.matmul(planes.transpose(-1, -2));
      if (with_offsets) distance = distance + offsets.unsqueeze(-2);
      for (const auto device : devices()) {
        const auto codes = sign_hash(x.to(device), planes.to(device),
                                     with_offsets ? offsets.to(device) : Tensor())
                               .cpu();
        ASSERT_EQ(codes.sizes(), x.sizes().slice(0, 3));
        for (int64_t plane = 0; plane < 63; ++plane)
          EXPECT_TRUE(codes.bitwise_and(int64_t{1} << plane)
                          .ne(0)
                          .equal(distance.select(3, plane) > 0))
              << plane << " on " << device;
      }
    }
}

TEST(SignHash, TakesEveryTypeAndNoTokens) {
  const auto planes = torch::eye(8);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const auto x = torch::full({1, 2, 3, 8}, 0.5, dtype);
    EXPECT_TRUE(sign_hash(x, planes).eq(255).all().item<bool>()) << dtype;
  }
  EXPECT_EQ(sign_hash(torch::ones({0, 2, 3, 8}), planes).numel(), 0);
  EXPECT_EQ(sign_hash(torch::ones({1, 2, 0, 8}), planes).numel(), 0);
}

TEST(SignHash, IsTheSameForAnyNumberOfThreads) {
  const auto x = random_tensors(1, {2, 3, 700, 64}, torch::kFloat)[0];
  const auto planes = random_tensors(1, {63, 64}, torch::kFloat, 1)[0];
  EXPECT_TRUE(same_with_any_threads([&] { return Tensors{sign_hash(x, planes)}; }));
}

TEST(SignHash, RefusesWhatDoesNotFit) {
  const auto x = torch::ones({1, 2, 3, 8});
  EXPECT_EQ(refusal([&] {
              sign_hash(x, torch::ones({5, 7}));
            }),
            "sign hash: planes must be [P, d] or [H, P, d] with H = 2 and d = 8, got "
            "[5, 7]");
  EXPECT_EQ(refusal([&] {
              sign_hash(x, torch::ones({64, 8}));
            }),
            "sign hash: there must be 1 to 63 planes, got 64");
  EXPECT_EQ(refusal([&] {
              sign_hash(x, torch::ones({5, 8}), torch::ones({4}));
            }),
            "sign hash: offsets must be [P] or [H, P] as planes [5, 8], got [4]");
}

// argmax([y; -y]) for y = x . rotations, of one example.
Tensor defined_hash(const Tensor& x, const Tensor& rotations, int64_t directions) {
  Tensors rounds;
  for (int64_t round = 0; round < rotations.size(2); ++round) {
    const auto y = x.matmul(rotations.select(2, round).slice(2, 0, directions));
    rounds.push_back(torch::cat({y, -y}, 2).argmax(2));
  }
  return torch::stack(rounds, 1);
}

TEST(CrossPolytopeHash, IsThePlaceOfTheLargest) {
  const auto x = random_tensors(1, {3, 2, 70, 8})[0];
  for (const bool by_head : {false, true}) {
    auto rotations = random_tensors(1, {2, 8, 3, 6}, torch::kDouble, 1)[0];
    if (!by_head) rotations = rotations.slice(0, 1);
    const auto of_head = rotations.expand({2, -1, -1, -1});
    for (const auto device : devices()) {
      const auto to = [&](const Tensor& tensor) { return tensor.to(device); };
      const auto all = cross_polytope_hash(to(x), to(rotations)).cpu();
      ASSERT_EQ(all.sizes(), (std::vector<int64_t>{3, 2, 3, 70}));
      const auto buckets = torch::tensor({12, 4, 7});
      const auto some = cross_polytope_hash(to(x), to(rotations), to(buckets)).cpu();
      const int64_t directions[] = {6, 2, 3};
      for (int64_t example = 0; example < 3; ++example) {
        EXPECT_TRUE(all[example].equal(defined_hash(x[example], of_head, 6)));
        EXPECT_TRUE(some[example].equal(
            defined_hash(x[example], of_head, directions[example])));
      }
    }
  }
}

TEST(CrossPolytopeHash, TakesTheFirstAmongEquals) {
  const auto rotations = torch::tensor({1.0, 1.0, -1.0}).view({1, 1, 1, 3});
  const auto x = torch::tensor({2.0, -2.0, 0.0}).view({1, 1, 3, 1});
  const auto hashes = cross_polytope_hash(x, rotations).flatten();
  EXPECT_TRUE(hashes.equal(torch::tensor({0, 2, 0}, torch::kLong)));
  const auto without = cross_polytope_hash(x, rotations, torch::tensor({1})).flatten();
  EXPECT_TRUE(without.eq(0).all().item<bool>());
}

// Longer than what is computed at once; rows of one direction and its opposite.
TEST(CrossPolytopeHash, IsSharedByVectorsOfOneDirection) {
  auto x = random_tensors(1, {1, 2, 40000, 4}, torch::kFloat)[0];
  const auto rotations = random_tensors(1, {2, 4, 3, 16}, torch::kFloat, 1)[0];
  const auto one = cross_polytope_hash(x, rotations),
             other = cross_polytope_hash(x * 4, rotations),
             opposite = cross_polytope_hash(-x, rotations);
  EXPECT_TRUE(one.equal(other));
  EXPECT_TRUE(opposite.equal((one + 16).remainder(32)));
  EXPECT_GT(one.max().item<int64_t>(), 16);
}

TEST(CrossPolytopeHash, TakesEveryTypeAndNoTokens) {
  const auto rotations = random_tensors(1, {1, 8, 2, 3}, torch::kFloat, 1)[0];
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const auto x = random_tensors(1, {1, 2, 5, 8}, torch::kFloat)[0].to(dtype);
    EXPECT_TRUE(cross_polytope_hash(x, rotations)
                    .equal(cross_polytope_hash(x.to(torch::kFloat), rotations)));
  }
  EXPECT_EQ(cross_polytope_hash(torch::ones({0, 2, 3, 8}), rotations).numel(), 0);
  EXPECT_EQ(cross_polytope_hash(torch::ones({1, 2, 0, 8}), rotations).numel(), 0);
}

TEST(CrossPolytopeHash, IsTheSameForAnyNumberOfThreads) {
  const auto x = random_tensors(1, {2, 3, 700, 64}, torch::kFloat)[0];
  const auto rotations = random_tensors(1, {3, 64, 4, 16}, torch::kFloat, 1)[0];
  EXPECT_TRUE(same_with_any_threads(
      [&] { return Tensors{cross_polytope_hash(x, rotations)}; }));
}

TEST(CrossPolytopeHash, RefusesWhatDoesNotFit) {
  const auto x = torch::ones({1, 2, 3, 8});
  EXPECT_EQ(refusal([&] {
              cross_polytope_hash(x, torch::ones({3, 8, 1, 2}));
            }),
            "cross-polytope hash: rotations must be [H|1, d, R, C] with H = 2 and d = "
            "8, got [3, 8, 1, 2]");
  EXPECT_EQ(refusal([&] {
              cross_polytope_hash(x, torch::ones({2, 8, 1, 2}), torch::ones({2}));
            }),
            "cross-polytope hash: buckets must be [B] integer with B = 1, got [2]");
}

}  // namespace
}  // namespace longspan::testing
