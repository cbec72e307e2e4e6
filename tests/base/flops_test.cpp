#include "longspan/base/flops.h"

#include <thread>

#include "longspan/kernels/block_attention.h"
#include "longspan/kernels/matmul.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

int64_t flops_of(const std::function<void()>& work) {
  const int64_t before = flops_counted();
  work();
  return flops_counted() - before;
}

TEST(TheCountOfOperations, AddsUp) {
  EXPECT_EQ(flops_of([] {
              { const Flops first(5); }
              { const Flops second(7); }
            }),
            12);
  EXPECT_EQ(flops_of([] {}), 0);
}

TEST(TheCountOfOperations, CountsNestedWorkOnce) {
  EXPECT_EQ(flops_of([] {
              const Flops outer(5);
              const Flops inner(7);
              { const Flops innermost(9); }
              const Flops another(11);
            }),
            5);
  EXPECT_EQ(flops_of([] { const Flops after(3); }), 3);
}

TEST(TheCountOfOperations, GoesOnAfterAFailure) {
  EXPECT_EQ(refusal([] {
              const Flops outer(5);
              const Flops inner(7);
              fail("no");
            }),
            "no");
  EXPECT_EQ(flops_of([] { const Flops after(3); }), 3);
}

TEST(TheCountOfOperations, IsOfOneThread) {
  int64_t there = -1;
  const int64_t here = flops_of([&] {
    const Flops outer(1);
    std::thread([&] { there = flops_of([] { const Flops inner(20); }); }).join();
  });
  EXPECT_EQ(here, 1);
  EXPECT_EQ(there, 20);
}

TEST(TheCountOfOperations, HasMatrixProducts) {
  const auto product = [](at::IntArrayRef a, at::IntArrayRef b) {
    return flops_of([&] { longspan::matmul(torch::ones(a), torch::ones(b)); });
  };
  EXPECT_EQ(product({3, 5}, {5, 7}), 2 * 3 * 5 * 7);
  EXPECT_EQ(product({2, 1, 3, 5}, {4, 5, 7}), 8 * 2 * 3 * 5 * 7);
  EXPECT_EQ(product({0, 5}, {5, 7}), 0);
  EXPECT_EQ(product({300, 200}, {200, 100}), 2 * 300 * 200 * 100);
}

TEST(TheCountOfOperations, HasLinearLayers) {
  const auto x = torch::ones({2, 3, 5}), weight = torch::ones({7, 5});
  EXPECT_EQ(flops_of([&] { longspan::linear(x, weight); }), 2 * 6 * 5 * 7);
  EXPECT_EQ(flops_of([&] { longspan::linear(x, weight, torch::ones(7)); }),
            2 * 6 * 5 * 7);
}

TEST(TheCountOfOperations, HasThePairsOfAttention) {
  constexpr int64_t kBatch = 2, kHeads = 3, kLength = 70, kWidth = 4, kValues = 6;
  const auto q = torch::ones({kBatch, kHeads, kLength, kWidth});
  const auto v = torch::ones({kBatch, kHeads, kLength, kValues});
  const auto with = [&](std::optional<Layout> layout) {
    return flops_of(
        [&] { block_attention({.q = q}, {{.k = q, .v = v, .layout = layout}}); });
  };
  constexpr int64_t kEach = 2 * (kWidth + kValues) * kBatch * kHeads;
  constexpr int64_t kCausal = kLength * (kLength + 1) / 2;
  EXPECT_EQ(with(std::nullopt), kEach * kLength * kLength);
  EXPECT_EQ(with(Layout(kLength, kLength, past_keys())), kEach * kCausal);
  EXPECT_EQ(with(Layout(kLength, kLength, block_of_keys(10))), kEach * kLength * 10);
  const Layout of_heads(kLength, kLength, {past_keys(), all_keys()},
                        {.heads = kHeads, .pattern = {0, 1, 0}});
  EXPECT_EQ(with(of_heads), kEach / kHeads * (2 * kCausal + kLength * kLength));
}

}  // namespace
}  // namespace longspan::testing
