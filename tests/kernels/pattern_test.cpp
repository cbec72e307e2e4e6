#include "longspan/kernels/pattern.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::refusal;
using Keys = std::vector<int64_t>;

// The keys below `count` that `query` sees, each as often as it is named.
Keys keys_of(const Pattern& pattern, int64_t query, int64_t count) {
  std::vector<Span> spans;
  pattern(query, spans);
  Keys keys;
  for (const auto& [from, to] : spans)
    for (int64_t key = std::max<int64_t>(from, 0); key < std::min(to, count); ++key)
      keys.push_back(key);
  std::ranges::sort(keys);
  return keys;
}

Keys range(int64_t from, int64_t to) {
  Keys keys(static_cast<size_t>(to - from));
  std::iota(keys.begin(), keys.end(), from);
  return keys;
}

TEST(Pattern, OfBlocksSeesNeighbouringBlocks) {
  EXPECT_EQ(keys_of(block_of_keys(4), 6, 20), range(4, 8));
  EXPECT_EQ(keys_of(block_of_keys(4, 1), 6, 20), range(0, 8));
  EXPECT_EQ(keys_of(block_of_keys(4, 3), 6, 20), range(0, 8));
  EXPECT_EQ(keys_of(block_of_keys(4, 0, 2), 6, 20), range(4, 16));
  EXPECT_EQ(keys_of(block_of_keys(4, 1, 1), 19, 20), range(12, 20));
}

TEST(Pattern, OfListedBlocksSeesThose) {
  const Pattern pattern = listed_blocks(3, {{1}, {0, 2}, {}});
  EXPECT_EQ(keys_of(pattern, 2, 20), range(3, 6));
  EXPECT_EQ(keys_of(pattern, 3, 20), (Keys{0, 1, 2, 6, 7, 8}));
  EXPECT_EQ(keys_of(pattern, 8, 20), Keys{});
  EXPECT_EQ(keys_of(pattern, 9, 20), Keys{});
}

TEST(Pattern, OfAStrideSeesItsResidue) {
  EXPECT_EQ(keys_of(stride_of_keys(4, 15), 6, 20), (Keys{2, 6, 10, 14}));
  EXPECT_EQ(keys_of(stride_of_keys(1, 5), 3, 20), range(0, 5));
}

TEST(Pattern, HasColumnsForAllAndRowsOfTheirOwn) {
  const Pattern pattern =
      rows_of_queries({{2, 4}, {9, 10}}, all_keys(), columns_of_keys({{0, 1}, {7, 9}}));
  for (const int64_t query : {2, 3, 9})
    EXPECT_EQ(keys_of(pattern, query, 12), range(0, 12));
  for (const int64_t query : {0, 1, 4, 8, 10})
    EXPECT_EQ(keys_of(pattern, query, 12), (Keys{0, 7, 8}));
}

TEST(Pattern, LeavesOutWhatAnotherShows) {
  const auto both = [](int64_t query, std::vector<Span>& keys) {
    keys.push_back({query, query + 2});
    keys.push_back({6, 8});
    keys.push_back({3, 4});
  };
  EXPECT_EQ(keys_of(but_not(all_keys(), both), 0, 10), (Keys{2, 4, 5, 8, 9}));
  EXPECT_EQ(keys_of(but_not(both, all_keys()), 0, 10), Keys{});
  EXPECT_EQ(keys_of(but_not(both, no_keys()), 9, 20), (Keys{3, 6, 7, 9, 10}));
  EXPECT_EQ(keys_of(but_not(past_keys(), window_of_keys(2, 0)), 5, 20), range(0, 3));
}

TEST(Pattern, InAnotherOrderShowsTheSamePairs) {
  const Pattern pattern = any_of({window_of_keys(2, 1, 3), columns_of_keys({{4, 6}})});
  for (const auto& order : {by_residue(3, 11), by_residue(20, 11), Keys{7, 2, 5}}) {
    const Pattern moved = in_order(pattern, order);
    for (size_t place = 0; place < order.size(); ++place) {
      Keys back;
      for (const int64_t key :
           keys_of(moved, static_cast<int64_t>(place), std::ssize(order)))
        back.push_back(order[static_cast<size_t>(key)]);
      std::ranges::sort(back);
      Keys expected = keys_of(pattern, order[place], 11);
      std::erase_if(expected, [&](int64_t key) {
        return std::ranges::find(order, key) == order.end();
      });
      EXPECT_EQ(back, expected);
    }
  }
}

TEST(Pattern, ByResiduePutsAStrideTogether) {
  EXPECT_EQ(by_residue(3, 8), (Keys{0, 3, 6, 1, 4, 7, 2, 5}));
  EXPECT_EQ(by_residue(1, 3), range(0, 3));
  EXPECT_EQ(by_residue(9, 3), range(0, 3));
  EXPECT_EQ(by_residue(3, 0), Keys{});
  std::vector<Span> spans;
  in_order(window_of_keys(2, 2, 3), by_residue(3, 30))(15, spans);
  EXPECT_EQ(spans.size(), 1u);
}

TEST(Pattern, TidySortsCutsAndJoins) {
  std::vector<Span> spans = {{8, 12}, {-3, 2}, {5, 5}, {2, 4}, {9, 30}, {7, 6}};
  tidy(spans, 20);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].from, 0);
  EXPECT_EQ(spans[0].to, 4);
  EXPECT_EQ(spans[1].from, 8);
  EXPECT_EQ(spans[1].to, 20);
}

TEST(Pattern, RefusesSizesItCannotHave) {
  const std::string window =
      "window: before and after must be 0 or more and dilation 1 or more, got ";
  EXPECT_EQ(refusal([] { window_of_keys(-1, 2); }), window + "-1, 2 and 1");
  EXPECT_EQ(refusal([] { window_of_keys(1, -2); }), window + "1, -2 and 1");
  EXPECT_EQ(refusal([] { window_of_keys(1, 2, 0); }), window + "1, 2 and 0");
  const std::string block =
      "block: size must be 1 or more, blocks before and after 0 or more, got ";
  EXPECT_EQ(refusal([] { block_of_keys(0); }), block + "0, 0 and 0");
  EXPECT_EQ(refusal([] { block_of_keys(3, 1, -1); }), block + "3, 1 and -1");
  EXPECT_EQ(refusal([] { listed_blocks(0, {}); }),
            "listed blocks: size must be 1 or more, got 0");
  EXPECT_EQ(refusal([] { stride_of_keys(0, 5); }), "stride: must be 1 or more, got 0");
  EXPECT_EQ(refusal([] { by_residue(-2, 5); }), "stride: must be 1 or more, got -2");
  EXPECT_EQ(refusal([] {
              in_order(all_keys(), {0, 2, 2});
            }),
            "order: a position may be in it once, got 2 twice");
  EXPECT_EQ(refusal([] {
              in_order(all_keys(), {0, -2});
            }),
            "order: positions must be 0 or more, got -2");
}

TEST(Pattern, AddsToTheKeysThatAreThere) {
  const Pattern patterns[] = {all_keys(),
                              past_keys(),
                              window_of_keys(1, 1),
                              window_of_keys(1, 1, 2),
                              block_of_keys(2),
                              listed_blocks(2, {{0}, {1}}),
                              stride_of_keys(2, 9),
                              columns_of_keys({{1, 2}}),
                              rows_of_queries({}, no_keys(), all_keys()),
                              any_of({past_keys(), all_keys()}),
                              both_of(past_keys(), all_keys()),
                              but_not(all_keys(), past_keys()),
                              in_order(all_keys(), by_residue(2, 70))};
  for (const auto& pattern : patterns) {
    std::vector<Span> keys = {{70, 71}};
    pattern(3, keys);
    ASSERT_GE(keys.size(), 2);
    EXPECT_EQ(keys[0].from, 70);
    EXPECT_EQ(keys[0].to, 71);
  }
}

}  // namespace
}  // namespace longspan
