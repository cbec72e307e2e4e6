#include "longspan/kernels/cluster.h"

#include "tests/support/any_threads.h"

namespace longspan::testing {
namespace {

Tensor random_codes(at::IntArrayRef shape) {
  torch::manual_seed(4);
  return torch::randint(std::numeric_limits<int64_t>::min(),
                        std::numeric_limits<int64_t>::max(), shape, torch::kLong);
}

TEST(HammingClusters, AreThoseOfTheReference) {
  for (const auto device : devices())
    for (const int64_t rows : {1, 2, 63, 600})
      for (const int64_t clusters : {1, 7, 100}) {
        const auto codes = random_codes({3, 2, rows}).to(device);
        auto keep = torch::ones({3, rows}, torch::kBool);
        keep[1].slice(0, 0, rows, 3).fill_(false);
        keep[2].fill_(false);
        for (const auto& kept : {Tensor(), keep})
          for (const int64_t rounds : {1, 2, 10})
            EXPECT_TRUE(
                hamming_clusters(codes, kept, clusters, rounds)
                    .equal(hamming_clusters_reference(codes, kept, clusters, rounds)))
                << rows << " rows, " << clusters << " clusters, " << rounds
                << " rounds on " << device;
      }
}

TEST(HammingClusters, BeginAtEvenlySpacedRows) {
  const auto codes = random_codes({1, 1, 10});
  const auto of = hamming_clusters(codes, {}, 4, 1)[0][0];
  const int64_t first[] = {0, 2, 5, 7};
  for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(of[first[c]].item<int64_t>(), c);
  EXPECT_TRUE(hamming_clusters(codes, {}, 100, 10)[0][0].equal(torch::arange(10)));
}

TEST(HammingClusters, FindWhatLiesTogether) {
  // Three codes far from each other, each with single bits changed.
  const auto far = torch::tensor({0L, 0xffffffffL, 0x0000ffff0000ffffL << 16});
  const auto kind = torch::arange(90).remainder(3);
  const auto codes = far.index_select(0, kind).bitwise_xor(
      torch::ones(90, torch::kLong).bitwise_left_shift(torch::arange(90) % 60));
  const auto of = hamming_clusters(codes.view({1, 1, -1}), {}, 3, 10)[0][0];
  EXPECT_TRUE(of.view({30, 3}).eq(of.slice(0, 0, 3)).all().item<bool>());
  EXPECT_EQ(std::get<0>(at::_unique(of)).numel(), 3);
}

TEST(HammingClusters, RoundsMakeRowsNearerToTheirCentroid) {
  const auto codes = random_codes({1, 1, 400});
  const auto bits = codes[0][0]
                        .unsqueeze(1)
                        .bitwise_right_shift(torch::arange(64))
                        .bitwise_and(1)
                        .to(torch::kDouble);
  const auto spread_of = [&](int64_t rounds) {
    const auto of = hamming_clusters(codes, {}, 9, rounds)[0][0];
    double sum = 0;
    for (int64_t c = 0; c < 9; ++c) {
      const auto mine = bits.index_select(0, (of == c).nonzero().view(-1));
      const auto majority = mine.mean(0).ge(0.5).to(torch::kDouble);
      sum += (mine - majority).abs().sum().item<double>();
    }
    return sum;
  };
  EXPECT_LT(spread_of(10), spread_of(1));
}

TEST(HammingClusters, CountManyRowsOfOneCluster) {
  // More than a byte can count: bit 0 is that of a third, bit 1 that of two thirds.
  const auto kind = torch::arange(3002).remainder(3);
  const auto codes = kind.eq(0).to(torch::kLong) + 2 * kind.ne(0).to(torch::kLong);
  const auto of = hamming_clusters(codes.view({1, 1, -1}), {}, 1, 3);
  EXPECT_TRUE(of.equal(hamming_clusters_reference(codes.view({1, 1, -1}), {}, 1, 3)));
  const auto two = hamming_clusters(codes.view({1, 1, -1}), {}, 2, 10)[0][0];
  EXPECT_TRUE(two.equal(kind.ne(0).to(torch::kLong)));
}

TEST(HammingClusters, AreTheSameForAnyNumberOfThreads) {
  const auto codes = random_codes({2, 3, 500});
  EXPECT_TRUE(same_with_any_threads(
      [&] { return Tensors{hamming_clusters(codes, {}, 30, 5)}; }));
}

TEST(HammingClusters, RefuseWhatDoesNotFit) {
  const auto codes = torch::zeros({1, 2, 3}, torch::kLong);
  EXPECT_EQ(refusal([&] { hamming_clusters(codes.to(torch::kInt), {}, 2, 1); }),
            "clusters: codes must be [B, H, N] int64, got [1, 2, 3]");
  EXPECT_EQ(refusal([&] {
              hamming_clusters(codes, torch::ones({1, 2}, torch::kBool), 2, 1);
            }),
            "clusters: keep must be bool [B, N] = [1, 3], got [1, 2]");
  EXPECT_EQ(refusal([&] { hamming_clusters(codes, {}, 0, 1); }),
            "clusters: there must be 1 to 65536, got 0");
  EXPECT_EQ(refusal([&] { hamming_clusters(codes, {}, 2, 0); }),
            "clusters: there must be 1 round or more, got 0");
}

}  // namespace
}  // namespace longspan::testing
