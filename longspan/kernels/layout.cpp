#include "longspan/kernels/layout.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "longspan/base/error.h"

namespace longspan {
namespace {

constexpr int64_t kTile = Layout::kTile;
constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // queries, and keys
constexpr uint64_t kAllBits = ~uint64_t{0};

int64_t tiles(int64_t count) { return (count + kTile - 1) / kTile; }

// The lowest `count` bits.
uint64_t low_bits(int64_t count) {
  return count >= kTile ? kAllBits : (uint64_t{1} << count) - 1;
}

// Sorts spans, cuts them to 0 .. end - 1 and joins those that touch.
void tidy(std::vector<Span>& spans, int64_t end) {
  for (Span& span : spans)
    span = {std::max<int64_t>(span.from, 0), std::min(span.to, end)};
  std::erase_if(spans, [](const Span& span) { return span.from >= span.to; });
  std::ranges::sort(spans, {}, &Span::from);
  size_t kept = 0;
  for (const Span& span : spans) {
    if (kept > 0 && span.from <= spans[kept - 1].to)
      spans[kept - 1].to = std::max(spans[kept - 1].to, span.to);
    else
      spans[kept++] = span;
  }
  spans.resize(kept);
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

Pattern all_keys() {
  return [](int64_t, std::vector<Span>& keys) { keys.push_back({0, kEnd}); };
}

Pattern past_keys(int64_t shift) {
  return [=](int64_t query, std::vector<Span>& keys) {
    keys.push_back({0, query + shift + 1});
  };
}

Pattern window_of_keys(int64_t before, int64_t after, int64_t dilation) {
  require(before >= 0 && after >= 0 && dilation >= 1,
          "window: before and after must be 0 or more and dilation 1 or more, got ",
          before, ", ", after, " and ", dilation);
  return [=](int64_t query, std::vector<Span>& keys) {
    const int64_t last = std::min(after, (kMost - query) / dilation);
    if (dilation == 1) {
      keys.push_back({query - before, query + last + 1});
      return;
    }
    for (int64_t step = -std::min(before, query / dilation); step <= last; ++step)
      keys.push_back({query + step * dilation, query + step * dilation + 1});
  };
}

Pattern block_of_keys(int64_t size) {
  require(size >= 1, "block: size must be 1 or more, got ", size);
  return [=](int64_t query, std::vector<Span>& keys) {
    const int64_t start = query / size * size;
    keys.push_back({start, start + size});
  };
}

Pattern any_of(std::vector<Pattern> patterns) {
  return [patterns = std::move(patterns)](int64_t query, std::vector<Span>& keys) {
    for (const auto& pattern : patterns) pattern(query, keys);
  };
}

Pattern both_of(Pattern first, Pattern second) {
  return [first = std::move(first), second = std::move(second)](
             int64_t query, std::vector<Span>& keys) {
    std::vector<Span> a, b;
    first(query, a);
    second(query, b);
    tidy(a, kEnd);
    tidy(b, kEnd);
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      keys.push_back({std::max(a[i].from, b[j].from), std::min(a[i].to, b[j].to)});
      if (a[i].to < b[j].to)
        ++i;
      else
        ++j;
    }
  };
}

struct Layout::Lists {
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

  int64_t queries = 0, keys = 0, patterns = 0;
  Choice choice;
  Side rows, columns;  // of all patterns, one after the other
  std::vector<MaskTile> masks;
};

Layout::Layout(int64_t queries, int64_t keys) : Layout(queries, keys, all_keys()) {}

Layout::Layout(int64_t queries, int64_t keys, const Pattern& pattern)
    : Layout(queries, keys, std::vector<Pattern>{pattern}, Choice{}) {}

Layout::Layout(int64_t queries, int64_t keys, const std::vector<Pattern>& patterns,
               Choice choice) {
  require(queries >= 0 && queries <= kMost && keys >= 0 && keys <= kMost,
          "layout: queries and keys must be between 0 and ", kMost, ", got ", queries,
          " and ", keys);
  require(!patterns.empty(), "layout: there must be at least one pattern");
  require(
      choice.examples >= 1 && choice.heads >= 1 &&
          static_cast<int64_t>(choice.pattern.size()) == choice.examples * choice.heads,
      "layout: the choice must name a pattern for each of ", choice.examples,
      " examples x ", choice.heads, " heads, got ", choice.pattern.size());
  for (const int32_t index : choice.pattern)
    require(index >= 0 && index < static_cast<int32_t>(patterns.size()),
            "layout: the choice names pattern ", index, ", there are ",
            patterns.size());

  auto lists = std::make_shared<Lists>();
  lists->queries = queries;
  lists->keys = keys;
  lists->patterns = static_cast<int64_t>(patterns.size());
  lists->choice = std::move(choice);
  MaskTable masks;
  for (const auto& pattern : patterns) {
    std::vector<std::vector<Run>> columns(tiles(keys));
    std::vector<Span> spans;
    for (int64_t tile = 0; tile < tiles(queries); ++tile) {
      const int64_t first = tile * kTile, count = std::min(kTile, queries - first);
      RowOfTiles row(count, keys);
      for (int64_t i = 0; i < count; ++i) {
        spans.clear();
        pattern(first + i, spans);
        tidy(spans, keys);
        row.add(i, spans);
      }
      const auto runs = row.runs(masks);
      lists->rows.push(runs);
      for (const Run& run : runs)
        for (int32_t key_tile = run.first; key_tile < run.first + run.count; ++key_tile)
          append(columns[key_tile], {static_cast<int32_t>(tile), 1, run.mask});
    }
    for (const auto& column : columns) lists->columns.push(column);
  }
  lists->masks = masks.take();
  lists_ = std::move(lists);
}

int64_t Layout::queries() const { return lists_->queries; }
int64_t Layout::keys() const { return lists_->keys; }
int64_t Layout::patterns() const { return lists_->patterns; }
const Layout::Choice& Layout::choice() const { return lists_->choice; }
std::span<const MaskTile> Layout::masks() const { return lists_->masks; }

int64_t Layout::pattern_of(int64_t example, int64_t head) const {
  const Choice& choice = lists_->choice;
  return choice.pattern[(choice.examples == 1 ? 0 : example) * choice.heads +
                        (choice.heads == 1 ? 0 : head)];
}

std::span<const Run> Layout::row(int64_t pattern, int64_t query_tile) const {
  return lists_->rows.of(pattern * query_tiles() + query_tile);
}

std::span<const Run> Layout::column(int64_t pattern, int64_t key_tile) const {
  return lists_->columns.of(pattern * key_tiles() + key_tile);
}

int64_t Layout::pairs(int64_t pattern) const {
  int64_t total = 0;
  for (int64_t tile = 0; tile < query_tiles(); ++tile) {
    const int64_t queries_here = std::min(kTile, queries() - tile * kTile);
    for (const Run& run : row(pattern, tile)) {
      for (int64_t at = run.first; at < run.first + run.count; ++at) {
        const int64_t keys_here = std::min(kTile, keys() - at * kTile);
        if (run.mask == kFull) {
          total += queries_here * keys_here;
          continue;
        }
        const MaskTile& mask = lists_->masks[run.mask];
        for (int64_t key = 0; key < keys_here; ++key)
          total += std::popcount(mask[key] & low_bits(queries_here));
      }
    }
  }
  return total;
}

torch::Tensor Layout::dense(int64_t pattern) const {
  auto seen = torch::zeros({queries(), keys()}, torch::kBool);
  auto* const pair = seen.data_ptr<bool>();
  for (int64_t tile = 0; tile < query_tiles(); ++tile) {
    for (const Run& run : row(pattern, tile)) {
      const int64_t key_end = std::min((run.first + run.count) * kTile, keys());
      for (int64_t i = tile * kTile; i < std::min((tile + 1) * kTile, queries()); ++i) {
        for (int64_t j = run.first * kTile; j < key_end; ++j) {
          const bool bit =
              run.mask == kFull ||
              (lists_->masks[run.mask][j % kTile] >> (i - tile * kTile) & 1) != 0;
          if (bit) pair[i * keys() + j] = true;
        }
      }
    }
  }
  return seen;
}

}  // namespace longspan
