#include "longspan/kernels/cuda/hopper_lists.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace longspan::cuda {
namespace {

constexpr int64_t kRows = 64;                 // of a tile
constexpr int64_t kMultiprocessors = 132;     // that cuts are made for, on any device
constexpr int64_t kPiecesOfEach = 4;          // block of threads
constexpr int64_t kShortestCut = 16;          // tiles
constexpr int32_t kNothing = -2, kFull = -1;  // of one tile; else its mask

uint64_t low_bits(int64_t count) {
  return count >= kRows ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Bit i of word j becomes bit j of word i.
std::array<uint64_t, 64> transposed(std::array<uint64_t, 64> words) {
  uint64_t keep = 0x00000000ffffffff;
  for (int half = 32; half != 0; half >>= 1, keep ^= keep << half)
    for (int i = 0; i < 64; i = ((i | half) + 1) & ~half) {
      const uint64_t swapped = ((words[i] >> half) ^ words[i | half]) & keep;
      words[i] ^= swapped << half;
      words[i | half] ^= swapped;
    }
  return words;
}

// Masks as kernels read them: own rows of `tiles` words.
class Masks {
 public:
  Masks(int32_t tiles, std::vector<uint64_t>& words) : tiles_(tiles), words_(words) {}

  // `parts[i]` is what the entry's tile i shows, `tile` + i of the other side.
  int32_t tag(const HopperTiles& pattern, int64_t number, int64_t tile,
              const std::array<int32_t, 2>& parts) {
    const int64_t others = pattern.by_key ? pattern.queries : pattern.keys;
    bool none = true, all = true, at_end = false;
    for (int32_t i = 0; i < tiles_; ++i) {
      const int64_t left = others - (tile + i) * kRows;
      none = none && parts[i] == kNothing;
      // Queries beyond the end have no weight, keys beyond the end must be hidden.
      all = all && (parts[i] == kFull ? left >= kRows || pattern.by_key
                                      : left <= 0 && pattern.by_key);
      at_end = at_end || left < kRows;
    }
    if (none) return HopperEntry::kNone;
    if (all) return HopperEntry::kAll;
    // Where all rows are there, masks do not depend on the tile.
    const Name name{number, at_end ? tile : -1, parts[0], tiles_ > 1 ? parts[1] : 0};
    const auto [found, is_new] = known_.emplace(name, count());
    if (is_new) {
      std::array<std::array<uint64_t, 64>, 2> words;
      for (int32_t i = 0; i < tiles_; ++i)
        words[i] = rows(pattern, parts[i], others - (tile + i) * kRows);
      for (int64_t row = 0; row < kRows; ++row)
        for (int32_t i = 0; i < tiles_; ++i) words_.push_back(words[i][row]);
    }
    return found->second;
  }

  // A mask that hides all pairs.
  int32_t hidden() {
    if (hidden_ < 0) {
      hidden_ = count();
      words_.resize(words_.size() + kRows * tiles_, 0);
    }
    return hidden_;
  }

 private:
  using Name = std::tuple<int64_t, int64_t, int32_t, int32_t>;

  int32_t count() const { return static_cast<int32_t>(words_.size() / kRows / tiles_); }

  static std::array<uint64_t, 64> rows(const HopperTiles& pattern, int32_t part,
                                       int64_t left) {
    std::array<uint64_t, 64> words;
    words.fill(part == kNothing ? 0 : ~uint64_t{0});
    if (part >= 0)
      words = pattern.by_key ? pattern.masks[part] : transposed(pattern.masks[part]);
    if (!pattern.by_key)
      for (uint64_t& word : words) word &= low_bits(std::max<int64_t>(left, 0));
    return words;
  }

  int32_t tiles_;
  std::vector<uint64_t>& words_;
  std::map<Name, int32_t> known_;
  int32_t hidden_ = -1;
};

int64_t own_tiles(const HopperTiles& pattern) {
  return static_cast<int64_t>(pattern.starts.size()) - 1;
}

std::span<const Run> runs_of(const HopperTiles& pattern, int64_t tile) {
  return std::span(pattern.runs)
      .subspan(pattern.starts[tile], pattern.starts[tile + 1] - pattern.starts[tile]);
}

int64_t length_of(const HopperTiles& pattern, int64_t tile) {
  int64_t length = 0;
  for (const Run& run : runs_of(pattern, tile)) length += run.count;
  return length;
}

// Own tiles in the order in which they share entries: as they come, but those that are
// far longer than most (global rows) last, among their like.
std::vector<int64_t> order_of(const HopperTiles& pattern) {
  std::vector<int64_t> lengths(own_tiles(pattern)), order(lengths.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int64_t>(i);
    lengths[i] = length_of(pattern, order[i]);
  }
  if (order.empty()) return order;
  auto sorted = lengths;
  const auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const int64_t long_one = 4 * std::max<int64_t>(*middle, 1);
  std::stable_partition(order.begin(), order.end(),
                        [&](int64_t tile) { return lengths[tile] < long_one; });
  return order;
}

// Entries that all groups need first, then those of one group and of another in turn,
// so that no group waits long for its next.
void interleave(std::vector<HopperEntry>& entries, int32_t groups) {
  const auto needs = [&](const HopperEntry& entry) {
    int32_t bits = 0;
    for (int32_t group = 0; group < groups; ++group)
      if (entry.tags[group] != HopperEntry::kNone) bits |= 1 << group;
    return bits;
  };
  const int32_t every = (1 << groups) - 1;
  std::array<std::vector<HopperEntry>, 8> by_need;
  for (const HopperEntry& entry : entries) by_need[needs(entry)].push_back(entry);
  entries = std::move(by_need[every]);
  by_need[every].clear();
  for (size_t round = 0, left = 1; left != 0; ++round) {
    left = 0;
    for (const auto& some : by_need)
      if (round < some.size()) {
        entries.push_back(some[round]);
        ++left;
      }
  }
}

// The entries of tiles `own` (one of each group) of a pattern.
std::vector<HopperEntry> entries_of(const HopperTiles& pattern, int64_t number,
                                    std::span<const int64_t> own,
                                    const HopperShape& shape, Masks& masks) {
  struct Cell {
    int64_t tile;
    int32_t group, mask;
  };
  std::vector<Cell> cells;
  for (size_t group = 0; group < own.size(); ++group)
    for (const Run& run : runs_of(pattern, own[group]))
      for (int32_t i = 0; i < run.count; ++i)
        cells.push_back({run.first + i, static_cast<int32_t>(group), run.mask});
  std::stable_sort(cells.begin(), cells.end(),
                   [](const Cell& a, const Cell& b) { return a.tile < b.tile; });
  std::vector<HopperEntry> entries;
  bool is_shared = true;
  for (size_t at = 0; at < cells.size();) {
    HopperEntry entry;
    entry.tile = static_cast<int32_t>(cells[at].tile / shape.tiles);
    const int64_t first = int64_t{entry.tile} * shape.tiles;
    std::array<std::array<int32_t, 2>, 3> parts;
    for (auto& of_group : parts) of_group.fill(kNothing);
    for (; at < cells.size() && cells[at].tile < first + shape.tiles; ++at)
      parts[cells[at].group][cells[at].tile - first] = cells[at].mask;
    for (int32_t group = 0; group < shape.groups; ++group) {
      int32_t& tag = entry.tags[group];
      if (group < static_cast<int32_t>(own.size()))
        tag = masks.tag(pattern, number, first, parts[group]);
      if (tag == HopperEntry::kNone && shape.in_turn) tag = masks.hidden();
      if (tag == HopperEntry::kNone) is_shared = false;
    }
    entries.push_back(entry);
  }
  if (!is_shared) interleave(entries, shape.groups);
  return entries;
}

// Whether own tiles that would share entries of a kernel mostly see the same ones, and
// enough of them.
bool share_entries(const HopperShape& shape, std::span<const HopperTiles> patterns) {
  constexpr double kShared = 0.9, kLength = 8;
  int64_t own_count = 0, seen = 0, visited = 0;
  std::vector<int64_t> entries;
  for (const HopperTiles& pattern : patterns) {
    const std::vector<int64_t> order = order_of(pattern);
    own_count += own_tiles(pattern);
    for (size_t at = 0; at < order.size(); at += shape.groups) {
      entries.clear();
      for (size_t i = at; i < std::min(at + shape.groups, order.size()); ++i)
        for (const Run& run : runs_of(pattern, order[i])) {
          seen += run.count;
          for (int64_t tile = run.first; tile < run.first + run.count; ++tile)
            entries.push_back(tile / shape.tiles);
        }
      std::ranges::sort(entries);
      const auto repeated = std::ranges::unique(entries);
      visited += (repeated.begin() - entries.begin()) * shape.groups * shape.tiles;
    }
  }
  return static_cast<double>(seen) >= kShared * static_cast<double>(visited) &&
         static_cast<double>(seen) >= kLength * static_cast<double>(own_count);
}

struct Strip {
  std::array<int32_t, 3> tiles = {-1, -1, -1};
  int64_t first = 0, end = 0;
};

}  // namespace

HopperLists HopperHostLists::sizes() const {
  HopperLists lists;
  lists.kernel = kernel;
  lists.piece_count = piece_count;
  lists.cut_count = cut_count;
  lists.parts = parts;
  lists.is_even = is_even;
  return lists;
}

HopperShape hopper_shape(HopperStep step, HopperKernel kernel, bool wide) {
  using enum HopperKernel;
  switch (step) {
    case HopperStep::kAttend:
      if (kernel == kLong) return wide ? HopperShape{2, 2, 1} : HopperShape{3, 2, 1};
      if (kernel == kTriple) return {3, 1, 1};
      if (kernel == kPair) return wide ? HopperShape{2, 1, 1} : HopperShape{};
      if (kernel == kSingle) return wide ? HopperShape{1, 1, 2} : HopperShape{1, 1, 3};
      return {2, 2, 1};
    case HopperStep::kKeyGradient:
      if (kernel == kLong) return wide ? HopperShape{2, 1, 1} : HopperShape{2, 2, 1};
      if (kernel == kSingle) return wide ? HopperShape{} : HopperShape{1, 1, 2};
      if (kernel == kGathered) return {2, 1, 1};
      return {};
    case HopperStep::kQueryGradient:
      if (kernel == kLong)
        return wide ? HopperShape{2, 2, 1, true} : HopperShape{3, 1, 1, true};
      if (kernel == kTriple) return wide ? HopperShape{} : HopperShape{3, 1, 1};
      if (kernel == kPair) return wide ? HopperShape{2, 1, 1} : HopperShape{};
      if (kernel == kSingle) return wide ? HopperShape{1, 1, 2} : HopperShape{1, 1, 3};
      return {2, 1, 1};
  }
  return {};
}

HopperKernel hopper_kernel(HopperStep step, bool wide,
                           std::span<const HopperTiles> patterns) {
  constexpr double kLongStretch = 14, kBand = 4;  // tiles next to each other
  double tiles = 0, stretches = 0;
  for (const HopperTiles& pattern : patterns)
    for (int64_t tile = 0; tile < own_tiles(pattern); ++tile) {
      int64_t end = -1;
      for (const Run& run : runs_of(pattern, tile)) {
        tiles += run.count;
        if (run.first != end) ++stretches;
        end = run.first + run.count;
      }
    }
  const double stretch = stretches > 0 ? tiles / stretches : 0;
  using enum HopperKernel;
  switch (step) {
    case HopperStep::kAttend:
      if (stretch >= kLongStretch) return kLong;
      if (stretch >= kBand && wide) return kTriple;
      return kSingle;
    case HopperStep::kKeyGradient:
      return stretch >= kBand || wide ||
                     share_entries(hopper_shape(step, kLong, wide), patterns)
                 ? kLong
                 : kSingle;
    case HopperStep::kQueryGradient: return stretch >= kLongStretch ? kLong : kSingle;
  }
  return kLong;
}

HopperHostLists hopper_lists(HopperStep step, HopperKernel kernel, bool wide,
                             std::span<const HopperTiles> patterns,
                             std::span<const int64_t> heads) {
  const HopperShape shape = hopper_shape(step, kernel, wide);
  HopperHostLists lists;
  lists.kernel = kernel;
  Masks masks(shape.tiles, lists.masks);
  std::vector<std::vector<Strip>> strips(patterns.size());
  int64_t all = 0, shortest = -1, longest = 0;
  for (size_t p = 0; p < patterns.size(); ++p) {
    const std::vector<int64_t> order = order_of(patterns[p]);
    for (size_t at = 0; at < order.size(); at += shape.groups) {
      const auto own = std::span(order).subspan(
          at, std::min<size_t>(shape.groups, order.size() - at));
      const auto entries =
          entries_of(patterns[p], static_cast<int64_t>(p), own, shape, masks);
      Strip strip;
      for (size_t i = 0; i < own.size(); ++i)
        strip.tiles[i] = static_cast<int32_t>(own[i]);
      strip.first = static_cast<int64_t>(lists.entries.size());
      lists.entries.insert(lists.entries.end(), entries.begin(), entries.end());
      strip.end = static_cast<int64_t>(lists.entries.size());
      const int64_t length = strip.end - strip.first;
      all += length * heads[p];
      longest = std::max(longest, length);
      shortest = shortest < 0 ? length : std::min(shortest, length);
      strips[p].push_back(strip);
    }
  }
  const int64_t most =
      std::max(kShortestCut / shape.tiles,
               all / (kPiecesOfEach * kMultiprocessors * shape.at_once) + 1);
  lists.is_even = longest == shortest && longest <= most;

  std::vector<std::vector<HopperPiece>> pieces(patterns.size());
  std::vector<std::vector<HopperCut>> cuts(patterns.size());
  for (size_t p = 0; p < patterns.size(); ++p) {
    int32_t parts = 0;
    for (const Strip& strip : strips[p]) {
      const int64_t length = strip.end - strip.first;
      const int64_t count = std::max<int64_t>((length + most - 1) / most, 1);
      const int64_t step_length = (length + count - 1) / count;
      HopperPiece piece;
      std::copy(strip.tiles.begin(), strip.tiles.end(), piece.tiles);
      if (count > 1) {
        HopperCut cut;
        std::copy(strip.tiles.begin(), strip.tiles.end(), cut.tiles);
        cut.first = parts;
        cut.count = static_cast<int32_t>(count);
        cuts[p].push_back(cut);
      }
      for (int64_t i = 0; i < count; ++i) {
        piece.first =
            static_cast<int32_t>(std::min(strip.first + i * step_length, strip.end));
        piece.end = static_cast<int32_t>(
            std::min(strip.first + (i + 1) * step_length, strip.end));
        piece.part = count > 1 ? parts++ : -1;
        pieces[p].push_back(piece);
      }
    }
    std::stable_sort(pieces[p].begin(), pieces[p].end(),
                     [](const HopperPiece& a, const HopperPiece& b) {
                       return a.end - a.first > b.end - b.first;
                     });
    lists.parts = std::max(lists.parts, parts);
    lists.piece_count =
        std::max(lists.piece_count, static_cast<int32_t>(pieces[p].size()));
    lists.cut_count = std::max(lists.cut_count, static_cast<int32_t>(cuts[p].size()));
  }
  for (size_t p = 0; p < patterns.size(); ++p) {
    pieces[p].resize(lists.piece_count);
    cuts[p].resize(lists.cut_count);
    lists.pieces.insert(lists.pieces.end(), pieces[p].begin(), pieces[p].end());
    lists.cuts.insert(lists.cuts.end(), cuts[p].begin(), cuts[p].end());
  }
  return lists;
}

}  // namespace longspan::cuda
