#include "longspan/kernels/device_lists.h"

#include <numeric>

#include <gtest/gtest.h>

#include "longspan/kernels/pattern.h"

namespace longspan {
namespace {

// Every tile is in pieces that follow one another, or in one that is the result.
void expect_whole(const CutLists& lists, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> covered(lengths.size());
  std::vector<const cuda::Piece*> parts(lists.parts);
  for (const cuda::Piece& piece : lists.pieces) {
    covered[piece.tile] += piece.end - piece.first;
    if (piece.part >= 0) {
      EXPECT_EQ(parts[piece.part], nullptr);
      parts[piece.part] = &piece;
    }
  }
  EXPECT_EQ(covered, lengths);
  int32_t next = 0;
  for (const cuda::Cut& cut : lists.cuts) {
    EXPECT_EQ(cut.first, next);
    int32_t at = 0;
    for (int32_t i = 0; i < cut.count; ++i, ++next) {
      ASSERT_NE(parts[next], nullptr);
      EXPECT_EQ(parts[next]->tile, cut.tile);
      EXPECT_EQ(parts[next]->first, at);
      at = parts[next]->end;
    }
    EXPECT_EQ(at, lengths[cut.tile]);
  }
  EXPECT_EQ(next, lists.parts);
}

TEST(CutLists, AreWhole) {
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {}, {0}, {1}, {300}, {4000}, {9, 9, 9, 256, 9, 9, 0, 256}}) {
    expect_whole(cut_lists(lengths, 1), lengths);
    expect_whole(cut_lists(lengths, 64), lengths);
  }
}

TEST(CutLists, CutWhatIsLongBesideOthers) {
  std::vector<int64_t> lengths(256, 9);
  lengths[0] = lengths[255] = 256;
  const CutLists lists = cut_lists(lengths, 32);
  EXPECT_EQ(lists.cuts.size(), 2u);
  EXPECT_LE(lists.pieces.front().end - lists.pieces.front().first, 64);
}

TEST(CutLists, LeaveEqualListsWholeWhereThereAreManyOfThem) {
  EXPECT_TRUE(cut_lists(std::vector<int64_t>(256, 256), 32).cuts.empty());
}

TEST(CutLists, CutFewLongLists) { EXPECT_GE(cut_lists({256}, 16).pieces.size(), 8u); }

TEST(DeviceLists, HoldTheLayoutsOfASource) {
  const int64_t queries = 150, keys = 130;
  const Layout layout(queries, keys, {window_of_keys(5, 5), past_keys(0)},
                      {.examples = 1, .heads = 3, .pattern = {0, 1, 0}});
  AttentionCall call;
  call.queries.q = torch::randn({2, 3, queries, 8});
  call.sources = {{.k = torch::randn({2, 3, keys, 8}),
                   .v = torch::randn({2, 3, keys, 8}),
                   .layout = layout}};
  const auto lists = device_lists(call, check(call));
  const cuda::Tiles& tiles = lists->sources[0].tiles;
  for (int32_t head = 0; head < 3; ++head) EXPECT_EQ(tiles.pattern[head], head % 2);
  for (int64_t pattern = 0; pattern < 2; ++pattern) {
    const torch::Tensor shown = layout.dense(pattern);
    torch::Tensor by_rows = torch::zeros_like(shown), by_columns = by_rows.clone();
    const auto put = [&](torch::Tensor& to, int64_t query_tile, int64_t key_tile,
                         int32_t mask, bool words_are_queries) {
      for (int64_t q = query_tile * 64; q < std::min(queries, query_tile * 64 + 64);
           ++q)
        for (int64_t k = key_tile * 64; k < std::min(keys, key_tile * 64 + 64); ++k) {
          const uint64_t word = mask < 0 ? ~uint64_t{0}
                                : words_are_queries
                                    ? tiles.by_query[mask * 64 + q % 64] >> (k % 64)
                                    : tiles.by_key[mask * 64 + k % 64] >> (q % 64);
          to[q][k] = (word & 1) != 0;
        }
    };
    const int32_t* const rows = tiles.row_starts + pattern * 4;
    for (int64_t tile = 0; tile < 3; ++tile)
      for (int32_t i = rows[tile]; i < rows[tile + 1]; ++i)
        for (int32_t t = 0; t < tiles.row_runs[i].count; ++t)
          put(by_rows, tile, tiles.row_runs[i].first + t, tiles.row_runs[i].mask, true);
    const int32_t* const columns = tiles.column_starts + pattern * 4;
    for (int64_t tile = 0; tile < 3; ++tile)
      for (int32_t i = columns[tile]; i < columns[tile + 1]; ++i)
        for (int32_t t = 0; t < tiles.column_runs[i].count; ++t)
          put(by_columns, tiles.column_runs[i].first + t, tile,
              tiles.column_runs[i].mask, false);
    EXPECT_TRUE(by_rows.equal(shown));
    EXPECT_TRUE(by_columns.equal(shown));
  }
}

TEST(DeviceLists, AreMadeOnceForALayout) {
  const Layout layout(100, 100, past_keys(0)), other(100, 100, past_keys(0));
  AttentionCall call;
  call.queries.q = torch::randn({1, 1, 100, 8});
  call.sources = {{.k = torch::randn({1, 1, 100, 8}),
                   .v = torch::randn({1, 1, 100, 8}),
                   .layout = layout}};
  const auto lists = device_lists(call, check(call));
  EXPECT_EQ(device_lists(call, check(call)), lists);
  call.sources[0].layout = other;
  EXPECT_NE(device_lists(call, check(call)), lists);
}

}  // namespace
}  // namespace longspan
