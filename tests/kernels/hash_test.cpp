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

}  // namespace
}  // namespace longspan::testing
