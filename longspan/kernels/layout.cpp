#include "longspan/kernels/layout.h"

#include <algorithm>
#include <limits>
#include <map>

#include "longspan/base/error.h"

namespace longspan {
namespace {

constexpr int64_t kTile = Layout::kTile;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // queries, and keys
constexpr uint64_t kAllBits = ~uint64_t{0};

int64_t tiles(int64_t count) { return (count + kTile - 1) / kTile; }

// The lowest `count` bits.
uint64_t low_bits(int64_t count) {
  return count >= kTile ? kAllBits : (uint64_t{1} << count) - 1;
}

// Makes equal mask tiles one.
class MaskTable {
 public:
  int32_t index(const MaskTile& tile) {
    const auto [found, is_new] =
        known_.emplace(tile, static_cast<int32_t>(masks_.size()));
    if (is_new) masks_.push_back(tile);
    return found->second;
  }

  std::vector<MaskTile> take() { return std::move(masks_); }

 private:
  std::map<MaskTile, int32_t> known_;
  std::vector<MaskTile> masks_;
};

// Appends tiles to a list of runs that ascends.
void append(std::vector<Run>& runs, const Run& next) {
  if (!runs.empty() && runs.back().mask == next.mask &&
      runs.back().first + runs.back().count == next.first)
    runs.back().count += next.count;
  else
    runs.push_back(next);
}

// What one tile of queries sees, collected row by row.
class RowOfTiles {
 public:
  RowOfTiles(int64_t queries, int64_t keys) : queries_(queries), keys_(keys) {}

  // `row` counts within the tile; `spans` are tidy.
  void add(int64_t row, const std::vector<Span>& spans) {
    const uint64_t bit = uint64_t{1} << row;
    for (const auto& [from, to] : spans) {
      const int64_t first_whole = tiles(from);
      const int64_t end_whole = to == keys_ ? tiles(keys_) : to / kTile;
      if (first_whole < end_whole) {
        whole_[first_whole] ^= bit;
        whole_[end_whole] ^= bit;
      }
      if (from < std::min(first_whole * kTile, to)) {
        set(from / kTile, from, std::min(first_whole * kTile, to), bit);
      }
      if (end_whole >= first_whole && end_whole * kTile < to)
        set(end_whole, end_whole * kTile, to, bit);
    }
  }

  std::vector<Run> runs(MaskTable& masks) {
    for (const auto& [tile, unused] : parts_) {  // no run goes across a part
      whole_[tile];
      whole_[tile + 1];
    }
    std::vector<Run> runs;
    uint64_t whole = 0;  // the rows that see all of the present tiles
    for (auto at = whole_.begin(); at != whole_.end(); ++at) {
      whole ^= at->second;
      const auto next = std::next(at);
      if (next == whole_.end()) break;
      MaskTile tile;
      tile.fill(whole);
      if (const auto part = parts_.find(at->first); part != parts_.end())
        for (int64_t key = 0; key < kTile; ++key) tile[key] |= part->second[key];
      const int64_t keys = std::min(kTile, keys_ - at->first * kTile);
      const auto begin = tile.begin(), end = begin + keys;
      const uint64_t every = low_bits(queries_);
      if (std::all_of(begin, end, [](uint64_t word) { return word == 0; })) continue;
      const bool full =
          std::all_of(begin, end, [&](uint64_t word) { return word == every; });
      append(runs, {static_cast<int32_t>(at->first),
                    static_cast<int32_t>(next->first - at->first),
                    full ? Layout::kFull : masks.index(tile)});
    }
    return runs;
  }

 private:
  void set(int64_t tile, int64_t from, int64_t to, uint64_t bit) {
    auto& words = parts_.try_emplace(tile, MaskTile{}).first->second;
    for (int64_t key = from; key < to; ++key) words[key - tile * kTile] |= bit;
  }

  int64_t queries_, keys_;
  std::map<int64_t, uint64_t> whole_;  // where rows begin and end to see whole tiles
  std::map<int64_t, MaskTile> parts_;  // tiles that some row sees a part of
};

}  // namespace

struct Tiles::Lists {
  // The runs of tile t are runs[start[t]] .. runs[start[t + 1] - 1].
  struct Side {
    std::vector<int32_t> start = {0};
    std::vector<Run> runs;

    void push(const std::vector<Run>& of_tile) {
      runs.insert(runs.end(), of_tile.begin(), of_tile.end());
      start.push_back(static_cast<int32_t>(runs.size()));
    }

    std::span<const Run> of(int64_t tile) const {
      return std::span(runs).subspan(start[tile], start[tile + 1] - start[tile]);
    }
  };

  int64_t queries = 0, keys = 0, pairs = 0;
  Side rows, columns;
  std::vector<MaskTile> masks;
};

Tiles::Tiles(int64_t queries, int64_t keys, const Pattern& pattern) {
  require(queries >= 0 && queries <= kMost && keys >= 0 && keys <= kMost,
          "layout: queries and keys must be between 0 and ", kMost, ", got ", queries,
          " and ", keys);
  auto lists = std::make_shared<Lists>();
  lists->queries = queries;
  lists->keys = keys;
  MaskTable masks;
  std::vector<std::vector<Run>> columns(tiles(keys));
  std::vector<Span> spans;
  for (int64_t tile = 0; tile < tiles(queries); ++tile) {
    const int64_t first = tile * kTile, count = std::min(kTile, queries - first);
    RowOfTiles row(count, keys);
    for (int64_t i = 0; i < count; ++i) {
      spans.clear();
      pattern(first + i, spans);
      tidy(spans, keys);
      for (const auto& [from, to] : spans) lists->pairs += to - from;
      row.add(i, spans);
    }
    const auto runs = row.runs(masks);
    lists->rows.push(runs);
    for (const Run& run : runs)
      for (int32_t key_tile = run.first; key_tile < run.first + run.count; ++key_tile)
        append(columns[key_tile], {static_cast<int32_t>(tile), 1, run.mask});
  }
  for (const auto& column : columns) lists->columns.push(column);
  lists->masks = masks.take();
  lists_ = std::move(lists);
}

int64_t Tiles::queries() const { return lists_->queries; }
int64_t Tiles::keys() const { return lists_->keys; }
int64_t Tiles::pairs() const { return lists_->pairs; }
std::span<const MaskTile> Tiles::masks() const { return lists_->masks; }

std::span<const Run> Tiles::row(int64_t query_tile) const {
  return lists_->rows.of(query_tile);
}

std::span<const Run> Tiles::column(int64_t key_tile) const {
  return lists_->columns.of(key_tile);
}

bool Tiles::is_all() const { return pairs() == queries() * keys(); }

bool Tiles::is_past() const {
  if (queries() != keys() || pairs() != queries() * (queries() + 1) / 2) return false;
  for (int64_t tile = 0; tile < query_tiles(); ++tile) {
    const int64_t count = std::min(kTile, queries() - tile * kTile);
    int64_t next = 0;
    for (const auto& [first, tiles, mask] : row(tile)) {
      if (first != next) return false;
      next += tiles;
      if (mask == kFull) continue;
      if (first != tile || tiles != 1) return false;
      for (int64_t key = 0; key < count; ++key)
        if (lists_->masks[mask][key] != (low_bits(count) & ~low_bits(key)))
          return false;
    }
    if (next != tile + 1) return false;
  }
  return true;
}

torch::Tensor Tiles::dense() const {
  auto seen = torch::zeros({queries(), keys()}, torch::kBool);
  auto* const pairs = seen.data_ptr<bool>();
  for (int64_t tile = 0; tile < query_tiles(); ++tile)
    for (int64_t i = tile * kTile; i < std::min((tile + 1) * kTile, queries()); ++i)
      for (const Run& run : row(tile)) {
        const int64_t from = run.first * kTile,
                      to = std::min((run.first + run.count) * kTile, keys());
        bool* const keys_of_i = pairs + i * keys();
        if (run.mask == kFull) {
          std::fill(keys_of_i + from, keys_of_i + to, true);
          continue;
        }
        const MaskTile& mask = lists_->masks[run.mask];
        for (int64_t j = from; j < to; ++j)
          keys_of_i[j] = (mask[j % kTile] >> (i - tile * kTile) & 1) != 0;
      }
  return seen;
}

Layout::Layout(int64_t queries, int64_t keys) : Layout(queries, keys, all_keys()) {}

Layout::Layout(int64_t queries, int64_t keys, const Pattern& pattern)
    : Layout({Tiles(queries, keys, pattern)}, Choice{}) {}

Layout::Layout(int64_t queries, int64_t keys, const std::vector<Pattern>& patterns,
               Choice choice)
    : Layout(
          [&] {
            std::vector<Tiles> tiles;
            for (const auto& pattern : patterns)
              tiles.emplace_back(queries, keys, pattern);
            return tiles;
          }(),
          std::move(choice)) {}

Layout::Layout(std::vector<Tiles> given, Choice choice)
    : patterns_(std::move(given)), choice_(std::move(choice)) {
  require(!patterns_.empty(), "layout: there must be at least one pattern");
  for (const Tiles& one : patterns_)
    require(one.queries() == queries() && one.keys() == keys(),
            "layout: all patterns must be for ", queries(), " queries and ", keys(),
            " keys, got one for ", one.queries(), " and ", one.keys());
  require(choice_.examples >= 1 && choice_.heads >= 1 &&
              static_cast<int64_t>(choice_.pattern.size()) ==
                  choice_.examples * choice_.heads,
          "layout: the choice must name a pattern for each of ", choice_.examples,
          " examples x ", choice_.heads, " heads, got ", choice_.pattern.size());
  for (const int32_t index : choice_.pattern)
    require(index >= 0 && index < patterns(), "layout: the choice names pattern ",
            index, ", there are ", patterns());
}

bool Layout::is_same(const Layout& other) const {
  return choice_ == other.choice_ &&
         std::ranges::equal(
             patterns_, other.patterns_,
             [](const Tiles& a, const Tiles& b) { return a.is_same(b); });
}

}  // namespace longspan
