#include "longspan/kernels/cuda/hopper_lists.h"

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "longspan/kernels/layout.h"

namespace longspan::cuda {
namespace {

constexpr int64_t kTile = Layout::kTile;
constexpr HopperStep kSteps[] = {HopperStep::kAttend, HopperStep::kKeyGradient,
                                 HopperStep::kQueryGradient};
constexpr HopperKernel kKernels[] = {HopperKernel::kLong, HopperKernel::kTriple,
                                     HopperKernel::kPair, HopperKernel::kSingle,
                                     HopperKernel::kGathered};

int64_t tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

// Bit i: whether row i of the tile is there.
uint64_t rows_there(int64_t tile, int64_t rows) {
  const int64_t left = std::clamp<int64_t>(rows - tile * kTile, 0, kTile);
  return left == kTile ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
}

// Pairs of own rows and others, a word for every own row and tile of others.
class Pairs {
 public:
  Pairs(int64_t own_rows, int64_t others)
      : tiles_(tiles_of(others)), words_(tiles_of(own_rows) * kTile * tiles_) {}

  uint64_t& at(int64_t row, int64_t tile) { return words_[row * tiles_ + tile]; }

  bool operator==(const Pairs&) const = default;

 private:
  int64_t tiles_;
  std::vector<uint64_t> words_;
};

// What a pattern shows; own rows are keys where `by_key`.
Pairs shown(const Layout& layout, int64_t pattern, bool by_key) {
  const torch::Tensor dense = layout.dense(pattern);
  const bool* const seen = dense.data_ptr<bool>();
  const int64_t queries = layout.queries(), keys = layout.keys();
  Pairs pairs(by_key ? keys : queries, by_key ? queries : keys);
  for (int64_t query = 0; query < queries; ++query)
    for (int64_t key = 0; key < keys; ++key) {
      if (!seen[query * keys + key]) continue;
      const int64_t own = by_key ? key : query, other = by_key ? query : key;
      pairs.at(own, other / kTile) |= uint64_t{1} << (other % kTile);
    }
  return pairs;
}

// The lists of one pattern among those of a call.
class Walk {
 public:
  Walk(const HopperHostLists& lists, const HopperShape& shape, const Layout& layout,
       int64_t pattern, bool by_key)
      : lists_(lists),
        shape_(shape),
        pieces_(std::span(lists.pieces)
                    .subspan(pattern * lists.piece_count, lists.piece_count)),
        cuts_(
            std::span(lists.cuts).subspan(pattern * lists.cut_count, lists.cut_count)),
        by_key_(by_key),
        own_rows_(by_key ? layout.keys() : layout.queries()),
        others_(by_key ? layout.queries() : layout.keys()),
        covered_(own_rows_, others_) {
    while (count_ < lists.piece_count && pieces_[count_].first >= 0) ++count_;
  }

  // The first thing that is wrong, or nothing.
  std::string fault(const Pairs& expected) {
    for (int32_t i = 0; i < count_ && fault_.empty(); ++i) walk(pieces_[i]);
    if (fault_.empty()) check_order();
    if (fault_.empty()) check_results();
    if (fault_.empty() && !(covered_ == expected)) fault_ = "other pairs than shown";
    return fault_;
  }

 private:
  void expect(bool is_so, const char* what) {
    if (!is_so && fault_.empty()) fault_ = what;
  }

  void walk(const HopperPiece& piece) {
    const auto entries = static_cast<int32_t>(lists_.entries.size());
    expect(piece.first <= piece.end && piece.end <= entries, "entries that are not");
    for (int32_t group = 0; group < 3; ++group) {
      const int32_t tile = piece.tiles[group];
      expect(tile < tiles_of(own_rows_), "an own tile that is not there");
      if (group >= shape_.groups) expect(tile == -1, "a tile without a group");
    }
    for (int32_t i = piece.first; i < piece.end && fault_.empty(); ++i)
      for (int32_t group = 0; group < shape_.groups; ++group)
        cover(piece.tiles[group], lists_.entries[i], lists_.entries[i].tags[group]);
  }

  void cover(int32_t own, const HopperEntry& entry, int32_t tag) {
    expect(!shape_.in_turn || tag != HopperEntry::kNone, "a turn left out");
    if (tag == HopperEntry::kNone) return;
    const int64_t mask_words = kTile * shape_.tiles;
    expect(tag < static_cast<int64_t>(lists_.masks.size()) / mask_words,
           "a mask that is not there");
    if (!fault_.empty()) return;
    for (int64_t row = 0; row < kTile; ++row)
      for (int64_t i = 0; i < shape_.tiles; ++i) {
        const int64_t tile = int64_t{entry.tile} * shape_.tiles + i;
        uint64_t word = tag == HopperEntry::kAll
                            ? ~uint64_t{0}
                            : lists_.masks[tag * mask_words + row * shape_.tiles + i];
        // Queries past the end have no weight.
        const uint64_t there = rows_there(tile, others_);
        expect(by_key_ || (word & ~there) == 0, "keys past the end");
        word &= there;
        if (own < 0) {
          expect(word == 0, "pairs of no tile");
          continue;
        }
        // Rows past the end are not written.
        if (own * kTile + row >= own_rows_ || word == 0) continue;
        uint64_t& covered = covered_.at(own * kTile + row, tile);
        expect((covered & word) == 0, "a pair twice");
        covered |= word;
      }
  }

  void check_order() {
    for (int32_t i = 0; i < lists_.piece_count; ++i) {
      const HopperPiece& piece = pieces_[i];
      const int32_t length = piece.end - piece.first;
      if (i >= count_) {
        expect(piece.first == -1, "pieces after the last");
        continue;
      }
      expect(i == 0 || length <= pieces_[i - 1].end - pieces_[i - 1].first,
             "a short piece before a longer one");
      if (lists_.is_even)
        expect(count_ == lists_.piece_count && piece.part < 0 &&
                   length == lists_.pieces[0].end - lists_.pieces[0].first,
               "uneven pieces");
    }
  }

  // Every own tile is the result of one piece, or of one cut whose parts follow one
  // another.
  void check_results() {
    std::vector<int32_t> results(tiles_of(own_rows_));
    const auto add = [&](const int32_t(&tiles)[3]) {
      for (const int32_t tile : tiles)
        if (tile >= 0) ++results[tile];
    };
    std::vector<const HopperPiece*> parts(lists_.parts);
    int32_t part_count = 0;
    for (const HopperPiece& piece : pieces_.first(count_)) {
      if (piece.part < 0) {
        add(piece.tiles);
        continue;
      }
      expect(piece.part < lists_.parts && !parts[piece.part], "a part twice");
      if (!fault_.empty()) return;
      parts[piece.part] = &piece;
      ++part_count;
    }
    int32_t next = 0;
    for (const HopperCut& cut : cuts_) {
      if (cut.count == 0) continue;
      add(cut.tiles);
      expect(cut.count > 1 && cut.first == next, "a cut that does not follow");
      for (int32_t i = 0; i < cut.count; ++i, ++next) {
        expect(next < part_count && parts[next], "a part that is not there");
        if (!fault_.empty()) return;
        expect(std::ranges::equal(parts[next]->tiles, cut.tiles), "a part of another");
        expect(i == 0 || parts[next]->first == parts[next - 1]->end,
               "parts that do not follow one another");
      }
    }
    expect(next == part_count, "parts of no cut");
    expect(std::ranges::all_of(results, [](int32_t count) { return count == 1; }),
           "an own tile with no result or two");
  }

  const HopperHostLists& lists_;
  HopperShape shape_;
  std::span<const HopperPiece> pieces_;
  std::span<const HopperCut> cuts_;
  bool by_key_;
  int64_t own_rows_, others_;
  Pairs covered_;
  int32_t count_ = 0;  // of pieces that are there
  std::string fault_;
};

// Blocks at random beside a window, and a global row and column.
Pattern scattered(int64_t queries, int64_t keys) {
  std::mt19937 random(static_cast<uint32_t>(queries + keys));
  std::vector<std::vector<int64_t>> blocks(tiles_of(queries));
  for (auto& of_block : blocks)
    for (int i = 0; i < 3; ++i)
      of_block.push_back(static_cast<int64_t>(random() % tiles_of(keys)));
  return any_of(
      {listed_blocks(kTile, blocks), block_of_keys(kTile, 1, 1),
       columns_of_keys({{0, 3}}),
       rows_of_queries({{queries / 2, queries / 2 + 1}}, all_keys(), no_keys())});
}

// Pairs at random; some rows, some columns and whole tiles show nothing.
Pattern holes(int64_t queries, int64_t keys) {
  return [=](int64_t query, std::vector<Span>& seen) {
    if (query == 5 || (query >= queries / 2 && query < queries / 2 + 70)) return;
    std::mt19937 random(static_cast<uint32_t>(query));
    for (int64_t key = 0; key < keys; ++key)
      if (random() % 3 == 0 && (key < keys / 3 || key > keys / 3 + 130))
        seen.push_back({key, key + 1});
  };
}

struct Named {
  const char* name;
  Pattern pattern;
};

std::vector<Named> patterns(int64_t queries, int64_t keys) {
  return {{"all", all_keys()},
          {"none", no_keys()},
          {"past", past_keys(keys - queries)},
          {"window", window_of_keys(20, 20)},
          {"wide window", window_of_keys(256, 64)},
          {"scattered", scattered(queries, keys)},
          {"holes", holes(queries, keys)}};
}

void expect_whole(const Layout& layout) {
  for (const HopperStep step : kSteps) {
    const bool by_key = step == HopperStep::kKeyGradient;
    std::vector<HopperTiles> tiles;
    std::vector<Pairs> expected;
    for (int64_t pattern = 0; pattern < layout.patterns(); ++pattern) {
      tiles.push_back(hopper_tiles(layout.tiles(pattern), by_key));
      expected.push_back(shown(layout, pattern, by_key));
    }
    for (const HopperKernel kernel : kKernels)
      for (const bool wide : {false, true}) {
        const HopperShape shape = hopper_shape(step, kernel, wide);
        if (shape.groups == 0) continue;
        for (const int64_t heads : {1, 100000}) {  // with cuts, and with none
          const std::vector<int64_t> of_each(tiles.size(), heads);
          const auto lists = hopper_lists(step, kernel, wide, tiles, of_each);
          for (int64_t pattern = 0; pattern < layout.patterns(); ++pattern) {
            Walk walk(lists, shape, layout, pattern, by_key);
            EXPECT_EQ(walk.fault(expected[pattern]), "")
                << "pattern " << pattern << ", step " << static_cast<int>(step)
                << ", kernel " << static_cast<int>(kernel) << ", wide " << wide
                << ", heads " << heads;
          }
          EXPECT_TRUE(heads == 1 || lists.parts == 0);
        }
      }
  }
}

TEST(HopperLists, ShowEveryPairOnce) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1},     {7, 130},     {64, 64},
                                               {257, 257}, {300, 517},   {517, 300},
                                               {1, 1500},  {1300, 1300}, {1400, 70}};
  for (const auto& [queries, keys] : sizes)
    for (const auto& [name, pattern] : patterns(queries, keys)) {
      SCOPED_TRACE(std::to_string(queries) + " x " + std::to_string(keys) + " " + name);
      expect_whole(Layout(queries, keys, pattern));
    }
}

TEST(HopperLists, HoldSeveralPatterns) {
  const int64_t queries = 700, keys = 1200;
  std::vector<Pattern> all;
  for (const auto& named : patterns(queries, keys)) all.push_back(named.pattern);
  all.push_back(no_keys());
  expect_whole(Layout(queries, keys, all, {}));
}

TEST(HopperLists, CutWhatIsLongUnlessThereIsMuchElse) {
  const Layout layout(4096, 4096, scattered(4096, 4096));
  for (const HopperStep step : kSteps)
    for (const bool wide : {false, true}) {
      EXPECT_GT(hopper_lists(step, wide, false, layout, 1, 1).cut_count, 0);
      EXPECT_EQ(hopper_lists(step, wide, false, layout, 100, 1000).cut_count, 0);
    }
}

TEST(HopperLists, AreEvenWhereAllPiecesAreEquallyLong) {
  for (const HopperStep step : kSteps) {
    EXPECT_TRUE(hopper_lists(step, false, false, Layout(768, 768), 1, 1).is_even);
    EXPECT_FALSE(
        hopper_lists(step, false, false, Layout(768, 768, past_keys()), 1, 1).is_even);
  }
}

TEST(HopperLists, AreForAKernelThatThereIs) {
  for (const auto& [name, pattern] : patterns(2100, 2100)) {
    const Layout layout(2100, 2100, pattern);
    for (const HopperStep step : kSteps)
      for (const bool wide : {false, true}) {
        const auto lists = hopper_lists(step, wide, false, layout, 2, 3);
        EXPECT_GT(hopper_shape(step, lists.kernel, wide).groups, 0) << name;
        EXPECT_NE(lists.kernel, HopperKernel::kGathered) << name;
        EXPECT_EQ(hopper_lists(step, wide, true, layout, 2, 3).kernel,
                  HopperKernel::kGathered);
        EXPECT_GT(hopper_shape(step, HopperKernel::kGathered, wide).groups, 0);
      }
  }
}

// Blocks of two tiles are alike for pairs of tiles, blocks of one are not.
TEST(HopperLists, AreForPairsOfKeyTilesWhereThoseSeeTheSame) {
  constexpr int64_t kLength = 4096;
  const auto kernel_of = [&](int64_t block, int64_t drawn) {
    std::mt19937 random(3);
    std::vector<std::vector<int64_t>> blocks(kLength / block);
    for (auto& of_block : blocks)
      for (int64_t i = 0; i < drawn; ++i)
        of_block.push_back(static_cast<int64_t>(random() % blocks.size()));
    const Layout layout(kLength, kLength, listed_blocks(block, blocks));
    return hopper_lists(HopperStep::kKeyGradient, false, false, layout, 1, 4).kernel;
  };
  EXPECT_EQ(kernel_of(2 * kTile, 7), HopperKernel::kLong);
  EXPECT_EQ(kernel_of(kTile, 12), HopperKernel::kSingle);
  EXPECT_EQ(kernel_of(2 * kTile, 1), HopperKernel::kSingle);
}

TEST(HopperLists, CountTheHeadsOfEachPattern) {
  // One head of many sees all; cuts go by the work of them all.
  std::vector<int32_t> chosen(64, 1);
  chosen[0] = 0;
  const Layout layout(2048, 2048, {all_keys(), window_of_keys(5, 5)},
                      {.examples = 1, .heads = 64, .pattern = chosen});
  const std::vector<HopperTiles> tiles = {hopper_tiles(layout.tiles(0), false),
                                          hopper_tiles(layout.tiles(1), false)};
  const auto got = hopper_lists(HopperStep::kAttend, false, false, layout, 2, 64);
  const auto expected = hopper_lists(HopperStep::kAttend, got.kernel, false, tiles,
                                     std::vector<int64_t>{2, 126});
  EXPECT_EQ(got.parts, expected.parts);
  EXPECT_EQ(got.piece_count, expected.piece_count);
  EXPECT_EQ(got.sizes().cut_count, expected.cut_count);
}

}  // namespace
}  // namespace longspan::cuda
