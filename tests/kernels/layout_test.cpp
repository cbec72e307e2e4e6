#include "longspan/kernels/layout.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::refusal;

constexpr int64_t kTile = Layout::kTile;
constexpr int64_t kSizes[] = {0, 1, 7, 63, 64, 65, 129, 200};

using Sees = std::function<bool(int64_t query, int64_t key)>;

// A pattern, and the same pair by pair.
struct Case {
  std::string name;
  Pattern pattern;
  Sees sees;
};

// Spans that differ from query to query: in no order, overlapping, empty, backwards and
// beyond the keys on both sides.
Pattern random_spans(uint32_t seed, int most) {
  return [=](int64_t query, std::vector<Span>& keys) {
    std::mt19937 random(seed + static_cast<uint32_t>(query));
    const int count = static_cast<int>(random() % static_cast<uint32_t>(most + 1));
    for (int i = 0; i < count; ++i) {
      const int64_t from = static_cast<int64_t>(random() % 300) - 50;
      keys.push_back({from, from + static_cast<int64_t>(random() % 150) - 10});
    }
  };
}

// Every span asked for the key by itself.
Sees in_a_span(Pattern pattern) {
  return [pattern = std::move(pattern), spans = std::vector<Span>(),
          known = int64_t{-1}](int64_t query, int64_t key) mutable {
    if (query != known) {
      spans.clear();
      pattern(query, spans);
      known = query;
    }
    return std::ranges::any_of(
        spans, [&](const Span& span) { return span.from <= key && key < span.to; });
  };
}

Case past(int64_t shift) {
  return {"past " + std::to_string(shift), past_keys(shift),
          [=](int64_t i, int64_t j) { return j <= i + shift; }};
}

Case window(int64_t before, int64_t after, int64_t dilation = 1) {
  return {"window " + std::to_string(before) + " " + std::to_string(after) + " " +
              std::to_string(dilation),
          window_of_keys(before, after, dilation), [=](int64_t i, int64_t j) {
            return std::abs(i - j) % dilation == 0 && i - j <= before * dilation &&
                   j - i <= after * dilation;
          }};
}

Case block(int64_t size) {
  return {"block " + std::to_string(size), block_of_keys(size),
          [=](int64_t i, int64_t j) { return i / size == j / size; }};
}

Case given(std::string name, Pattern pattern) {
  return {std::move(name), pattern, in_a_span(pattern)};
}

Case any(const Case& a, const Case& b) {
  return {"any of " + a.name + " and " + b.name, any_of({a.pattern, b.pattern}),
          [=](int64_t i, int64_t j) { return a.sees(i, j) || b.sees(i, j); }};
}

Case both(const Case& a, const Case& b) {
  return {"both of " + a.name + " and " + b.name, both_of(a.pattern, b.pattern),
          [=](int64_t i, int64_t j) { return a.sees(i, j) && b.sees(i, j); }};
}

std::vector<Case> all_cases() {
  const Case all{"all", all_keys(), [](int64_t, int64_t) { return true; }};
  const Case none = given("none", [](int64_t, std::vector<Span>&) {});
  const Case some = given("spans", random_spans(1, 4));
  const Case few = given("few spans", random_spans(2, 1));
  const Case pieces = given("all keys in pieces",  //
                            [](int64_t, std::vector<Span>& keys) {
                              keys.push_back({64, 130});
                              keys.push_back({100, 5000});
                              keys.push_back({-7, 3});
                              keys.push_back({3, 64});
                            });
  const Case alternate =
      given("every other key for every third query",
            [](int64_t query, std::vector<Span>& keys) {
              for (int64_t key = 200; key >= 0 && query % 3 == 0; key -= 2)
                keys.push_back({key, key + 1});
            });
  return {all,
          none,
          past(0),
          past(1),
          past(70),
          past(-1),
          past(-64),
          past(-300),
          window(0, 0),
          window(3, 0),
          window(64, 64),
          window(100, 10),
          window(1000, 1000),
          window(2, 3, 5),
          window(7, 0, 64),
          window(0, 2, 70),
          block(1),
          block(5),
          block(64),
          block(96),
          block(1000),
          some,
          few,
          pieces,
          alternate,
          given("any of nothing", any_of({})),
          any(past(-70), window(5, 5)),
          any(block(10), window(3, 3, 20)),
          any(some, few),
          both(past(0), window(50, 50)),
          both(past(0), block(40)),
          both(window(9, 9, 7), past(0)),
          both(some, pieces),
          both(some, alternate),
          both(few, none),
          both(all, few)};
}

// The tiles of runs, with their masks. Runs must ascend and be as long as they can be.
std::map<int32_t, int32_t> tiles_of(std::span<const Run> runs, int64_t tiles) {
  std::map<int32_t, int32_t> masks;
  int32_t end = 0, mask = Layout::kFull - 1;
  for (const Run& run : runs) {
    EXPECT_GE(run.count, 1);
    EXPECT_GE(run.first, end);
    EXPECT_FALSE(run.first == end && run.mask == mask) << "two runs that could be one";
    end = run.first + run.count;
    mask = run.mask;
    EXPECT_LE(end, tiles);
    for (int32_t tile = run.first; tile < end; ++tile) masks[tile] = run.mask;
  }
  return masks;
}

// Looks at everything a pattern of a layout says, pair by pair.
void expect_shows(const Layout& layout, int64_t pattern, const Sees& sees) {
  const int64_t queries = layout.queries(), keys = layout.keys();
  const auto dense = layout.dense(pattern);
  ASSERT_EQ(dense.sizes(), (std::vector<int64_t>{queries, keys}));
  ASSERT_EQ(dense.scalar_type(), torch::kBool);
  const auto shown = dense.accessor<bool, 2>();
  int64_t pairs = 0, wrong = 0;
  std::vector<std::vector<char>> seen(queries, std::vector<char>(keys));
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) {
      seen[i][j] = sees(i, j);
      pairs += seen[i][j];
      wrong += seen[i][j] != static_cast<char>(shown[i][j]);
    }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(layout.pairs(pattern), pairs);

  std::map<std::pair<int32_t, int32_t>, int32_t> by_rows, by_columns;
  for (int32_t tile = 0; tile < layout.query_tiles(); ++tile)
    for (const auto& [key_tile, mask] :
         tiles_of(layout.row(pattern, tile), layout.key_tiles()))
      by_rows[{tile, key_tile}] = mask;
  for (int32_t tile = 0; tile < layout.key_tiles(); ++tile)
    for (const auto& [query_tile, mask] :
         tiles_of(layout.column(pattern, tile), layout.query_tiles()))
      by_columns[{query_tile, tile}] = mask;
  EXPECT_EQ(by_rows, by_columns);

  for (int32_t a = 0; a < layout.query_tiles(); ++a)
    for (int32_t b = 0; b < layout.key_tiles(); ++b) {
      const int64_t rows = std::min(kTile, queries - a * kTile);
      const int64_t columns = std::min(kTile, keys - b * kTile);
      int64_t count = 0;
      MaskTile expected{};
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          if (seen[a * kTile + i][b * kTile + j]) {
            expected[j] |= uint64_t{1} << i;
            ++count;
          }
      const auto listed = by_rows.find({a, b});
      ASSERT_EQ(listed != by_rows.end(), count > 0) << "tile " << a << ", " << b;
      if (count == 0) continue;
      const int32_t mask = listed->second;
      if (count == rows * columns) {
        EXPECT_EQ(mask, Layout::kFull) << "tile " << a << ", " << b;
        continue;
      }
      ASSERT_TRUE(mask >= 0 &&
                  mask < static_cast<int32_t>(layout.masks(pattern).size()));
      MaskTile stored = layout.masks(pattern)[mask];
      std::fill(stored.begin() + columns, stored.end(), 0);
      EXPECT_EQ(stored, expected) << "tile " << a << ", " << b;
    }
}

void expect_different_masks_all_used(const Layout& layout) {
  const auto masks = layout.masks(0);
  EXPECT_EQ(std::set<MaskTile>(masks.begin(), masks.end()).size(), masks.size());
  std::set<int32_t> used;
  for (int64_t tile = 0; tile < layout.query_tiles(); ++tile)
    for (const Run& run : layout.row(0, tile))
      if (run.mask != Layout::kFull) used.insert(run.mask);
  EXPECT_EQ(used.size(), masks.size());
}

// Runs of rows, and of columns, of pattern 0.
std::pair<int64_t, int64_t> runs(const Layout& layout) {
  int64_t rows = 0, columns = 0;
  for (int64_t tile = 0; tile < layout.query_tiles(); ++tile)
    rows += std::ssize(layout.row(0, tile));
  for (int64_t tile = 0; tile < layout.key_tiles(); ++tile)
    columns += std::ssize(layout.column(0, tile));
  return {rows, columns};
}

using Runs = std::pair<int64_t, int64_t>;

TEST(Layout, ShowsThePairsOfItsPattern) {
  for (const auto& c : all_cases())
    for (const int64_t queries : kSizes)
      for (const int64_t keys : kSizes) {
        SCOPED_TRACE(c.name + ", " + std::to_string(queries) + " queries, " +
                     std::to_string(keys) + " keys");
        const Layout layout(queries, keys, c.pattern);
        EXPECT_EQ(layout.queries(), queries);
        EXPECT_EQ(layout.keys(), keys);
        EXPECT_EQ(layout.patterns(), 1);
        EXPECT_EQ(layout.query_tiles(), (queries + 63) / 64);
        EXPECT_EQ(layout.key_tiles(), (keys + 63) / 64);
        expect_shows(layout, 0, c.sees);
        expect_different_masks_all_used(layout);
        if (HasFailure()) return;
      }
}

TEST(Layout, ShowsThePairsOfRandomSpans) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const auto c = given("", random_spans(1000 * seed, static_cast<int>(seed % 7)));
    const Layout layout(100 + 7 * seed, 250 - 5 * seed, c.pattern);
    expect_shows(layout, 0, c.sees);
    expect_different_masks_all_used(layout);
  }
}

TEST(Layout, ShowsEverythingWithoutAPattern) {
  for (const int64_t queries : kSizes)
    for (const int64_t keys : kSizes) {
      const Layout layout(queries, keys);
      expect_shows(layout, 0, [](int64_t, int64_t) { return true; });
      EXPECT_TRUE(layout.masks(0).empty());
    }
}

TEST(Layout, AsksForEveryQueryOnceInOrder) {
  std::vector<int64_t> asked;
  const Layout layout(130, 10, [&](int64_t query, std::vector<Span>& keys) {
    EXPECT_TRUE(keys.empty());
    asked.push_back(query);
    keys.push_back({0, 10});
  });
  ASSERT_EQ(asked.size(), 130);
  for (size_t i = 0; i < asked.size(); ++i)
    EXPECT_EQ(asked[i], static_cast<int64_t>(i));
}

TEST(Layout, TakesSpansAtTheEndsOfTheNumbers) {
  using Limits = std::numeric_limits<int64_t>;
  const Layout layout(3, 100, [](int64_t query, std::vector<Span>& keys) {
    if (query == 0) keys.push_back({Limits::min(), Limits::max()});
    if (query == 1) keys.push_back({Limits::max(), Limits::min()});
    if (query == 2) keys.push_back({99, Limits::max()});
  });
  expect_shows(layout, 0,
               [](int64_t i, int64_t j) { return i == 0 || (i == 2 && j == 99); });
}

TEST(Layout, OfPatternsThatNestIsThatOfThePairs) {
  const Case a = past(3), b = window(4, 9, 3), c = block(30),
             d = given("", random_spans(9, 5));
  const Case nested = any(both(any(a, b), d), both(c, any(b, d)));
  expect_shows(Layout(150, 170, nested.pattern), 0, nested.sees);
}

TEST(Layout, OfAllKeysIsOneRunARow) {
  const Layout layout(65536, 65536);
  EXPECT_EQ(runs(layout), (Runs{1024, 1024}));
  EXPECT_TRUE(layout.masks(0).empty());
  const auto row = layout.row(0, 1023);
  ASSERT_EQ(row.size(), 1);
  EXPECT_EQ(row[0].first, 0);
  EXPECT_EQ(row[0].count, 1024);
  EXPECT_EQ(row[0].mask, Layout::kFull);
  EXPECT_EQ(layout.pairs(0), int64_t{65536} * 65536);
}

TEST(Layout, OfThePastHasOneMaskAndTwoRunsARow) {
  const Layout layout(1024, 1024, past_keys());
  EXPECT_EQ(layout.masks(0).size(), 1);
  EXPECT_EQ(runs(layout), (Runs{31, 31}));  // 16 tiles, of which one has one run
  EXPECT_EQ(layout.pairs(0), 1024 * 1025 / 2);

  EXPECT_EQ(Layout(1024, 1024, past_keys(64)).masks(0).size(), 1);
  EXPECT_EQ(Layout(1024, 1024, past_keys(-128)).masks(0).size(), 1);
  EXPECT_EQ(Layout(1024, 1024, past_keys(5)).masks(0).size(), 2);
}

TEST(Tiles, KnowAllAndThePast) {
  for (const int64_t count : {1, 2, 63, 64, 65, 128, 129, 300}) {
    EXPECT_TRUE(Tiles(count, count, past_keys()).is_past()) << count;
    EXPECT_TRUE(Tiles(count, count, all_keys()).is_all()) << count;
    EXPECT_EQ(Tiles(count, count, past_keys()).is_all(), count == 1) << count;
    EXPECT_EQ(Tiles(count, count, all_keys()).is_past(), count == 1) << count;
    EXPECT_FALSE(Tiles(count, count + 1, past_keys()).is_past()) << count;
    if (count > 1) {
      EXPECT_FALSE(Tiles(count, count, window_of_keys(count - 2, 0)).is_past());
    }
  }
  // As many pairs as the past has, but others.
  const Pattern later = [](int64_t query, std::vector<Span>& keys) {
    keys.push_back({query, 100});
  };
  EXPECT_EQ(Tiles(100, 100, later).pairs(), Tiles(100, 100, past_keys()).pairs());
  EXPECT_FALSE(Tiles(100, 100, later).is_past());
}

TEST(Layout, OfAWindowHasFewMasksAndFewRunsARow) {
  const Layout centred(4096, 4096, window_of_keys(128, 128));
  EXPECT_EQ(centred.masks(0).size(), 2);  // where it begins and where it ends
  const auto [rows, columns] = runs(centred);
  EXPECT_EQ(rows, 64 + 62 + 62);
  EXPECT_EQ(columns, rows);

  const Layout behind(4096, 4096, window_of_keys(100, 0));
  EXPECT_EQ(behind.masks(0).size(), 3);
  EXPECT_EQ(runs(behind), (Runs{64 + 63 + 62, 64 + 63 + 62}));

  EXPECT_EQ(Layout(4096, 4096, window_of_keys(4, 4, 64)).masks(0).size(), 1);
}

TEST(Layout, GrowsWithTheQueriesAndNotWithTheirSquare) {
  const Pattern patterns[] = {all_keys(), past_keys(), past_keys(17),
                              window_of_keys(200, 30), block_of_keys(100)};
  for (const auto& pattern : patterns) {
    const Layout once(4096, 4096, pattern), twice(8192, 8192, pattern);
    EXPECT_LE(runs(twice).first, 2 * runs(once).first + 16);
    EXPECT_LE(runs(twice).second, 2 * runs(once).second + 16);
    EXPECT_LE(runs(once).first, 5 * 64);
    EXPECT_EQ(twice.masks(0).size(), once.masks(0).size());
  }
}

TEST(Layout, HoldsManyPatterns) {
  const std::vector<Case> cases = {past(0), given("", random_spans(3, 3)), past(64),
                                   window(20, 20), past(0)};
  std::vector<Pattern> patterns;
  for (const auto& c : cases) patterns.push_back(c.pattern);
  const Layout layout(140, 210, patterns, {});
  EXPECT_EQ(layout.patterns(), 5);
  for (size_t i = 0; i < cases.size(); ++i)
    expect_shows(layout, static_cast<int64_t>(i), cases[i].sees);
}

TEST(Layout, IsMadeOfTilesThatAreThere) {
  const Tiles past(140, 210, past_keys()), all(140, 210, all_keys());
  const Layout layout({past, all, past}, {.heads = 2, .pattern = {1, 2}});
  EXPECT_EQ(layout.row(2, 1).data(), past.row(1).data());
  EXPECT_EQ(layout.pairs(layout.pattern_of(0, 0)), 140 * 210);
  EXPECT_EQ(layout.pairs(layout.pattern_of(5, 1)), 140 * 141 / 2);
  EXPECT_EQ(refusal([&] {
              Layout({past, Tiles(140, 200, all_keys())}, {});
            }),
            "layout: all patterns must be for 140 queries and 210 keys, got one for "
            "140 and 200");
}

TEST(Layout, LetsEveryExampleAndHeadChoose) {
  const std::vector<Pattern> patterns = {all_keys(), past_keys(), block_of_keys(4)};
  const auto chosen = [&](int64_t examples, int64_t heads, std::vector<int32_t> names) {
    return Layout(9, 9, patterns, {examples, heads, std::move(names)});
  };
  const auto each = chosen(2, 3, {0, 1, 2, 2, 0, 1});
  const int64_t expected[2][3] = {{0, 1, 2}, {2, 0, 1}};
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 3; ++h) EXPECT_EQ(each.pattern_of(b, h), expected[b][h]);
  EXPECT_EQ(each.choice().examples, 2);
  EXPECT_EQ(each.choice().heads, 3);
  EXPECT_EQ(each.choice().pattern, (std::vector<int32_t>{0, 1, 2, 2, 0, 1}));

  const auto by_head = chosen(1, 3, {2, 1, 0}), by_example = chosen(3, 1, {2, 1, 0}),
             alone = chosen(1, 1, {2});
  for (int64_t b = 0; b < 3; ++b)
    for (int64_t h = 0; h < 3; ++h) {
      EXPECT_EQ(by_head.pattern_of(b, h), 2 - h);
      EXPECT_EQ(by_example.pattern_of(b, h), 2 - b);
      EXPECT_EQ(alone.pattern_of(b, h), 2);
      EXPECT_EQ(Layout(9, 9).pattern_of(b, h), 0);
    }
}

TEST(Layout, SharesItsListsWithItsCopies) {
  std::optional<Layout> first(Layout(200, 200, past_keys(3)));
  const Layout second = *first;
  EXPECT_EQ(second.row(0, 1).data(), first->row(0, 1).data());
  EXPECT_EQ(second.column(0, 1).data(), first->column(0, 1).data());
  EXPECT_EQ(second.masks(0).data(), first->masks(0).data());
  first.reset();
  expect_shows(second, 0, [](int64_t i, int64_t j) { return j <= i + 3; });
}

TEST(Layout, RefusesWhatItCannotShow) {
  const std::string sizes =
      "layout: queries and keys must be between 0 and 2147483647, got ";
  EXPECT_EQ(refusal([] { Layout(-1, 5); }), sizes + "-1 and 5");
  EXPECT_EQ(refusal([] { Layout(5, -2); }), sizes + "5 and -2");
  EXPECT_EQ(refusal([] { Layout(5, int64_t{1} << 31); }), sizes + "5 and 2147483648");
  EXPECT_EQ(refusal([] { Layout(int64_t{1} << 31, 5); }), sizes + "2147483648 and 5");
  EXPECT_EQ(refusal([] { Layout(5, 5, std::vector<Pattern>{}, {}); }),
            "layout: there must be at least one pattern");

  const auto choosing = [](int64_t examples, int64_t heads,
                           std::vector<int32_t> names) {
    return refusal([&] {
      Layout(5, 5, {all_keys(), past_keys()}, {examples, heads, names});
    });
  };
  EXPECT_EQ(choosing(2, 2, {0, 1, 1, 0}), "accepted");
  EXPECT_EQ(choosing(2, 2, {0, 1, 1}),
            "layout: the choice must name a pattern for each of 2 examples x 2 heads, "
            "got 3");
  EXPECT_EQ(choosing(0, 2, {}),
            "layout: the choice must name a pattern for each of 0 examples x 2 heads, "
            "got 0");
  EXPECT_EQ(choosing(-1, -1, {0}),
            "layout: the choice must name a pattern for each of -1 examples x -1 "
            "heads, got 1");
  EXPECT_EQ(choosing(1, 2, {0, 2}), "layout: the choice names pattern 2, there are 2");
  EXPECT_EQ(choosing(1, 2, {-1, 0}),
            "layout: the choice names pattern -1, there are 2");
}

}  // namespace
}  // namespace longspan
