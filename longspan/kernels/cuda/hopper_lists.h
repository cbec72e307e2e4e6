// The lists that the kernels of Hopper walk, from the runs and masks of layouts.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "longspan/kernels/cuda/hopper.h"

namespace longspan::cuda {

// One pattern as the layout has it: runs of tiles of keys for every tile of queries, or
// of tiles of queries for every tile of keys where `by_key`.
struct HopperTiles {
  int64_t queries = 0, keys = 0;
  bool by_key = false;
  std::vector<Run> runs;
  std::vector<int32_t> starts = {0};  // into runs, one more than there are tiles
  // Word = key of the tile, bit = query.
  std::span<const std::array<uint64_t, 64>> masks;
};

// To be copied to the device as they are.
struct HopperHostLists {
  HopperKernel kernel = HopperKernel::kLong;
  std::vector<HopperPiece> pieces;
  std::vector<HopperEntry> entries;
  std::vector<uint64_t> masks;
  std::vector<HopperCut> cuts;
  int32_t piece_count = 0, cut_count = 0, parts = 0;
  bool is_even = false;

  // All but pointers and `pattern`.
  HopperLists sizes() const;
};

// The kernel that suits patterns of long rows, of bands, or of scattered tiles.
HopperKernel hopper_kernel(HopperStep step, bool wide,
                           std::span<const HopperTiles> patterns);

// `heads[p]` (example, head) have pattern p. How rows are cut depends on that and on
// the layout only, not on the device.
HopperHostLists hopper_lists(HopperStep step, HopperKernel kernel, bool wide,
                             std::span<const HopperTiles> patterns,
                             std::span<const int64_t> heads);

// One pattern of a layout (longspan::Tiles).
template <class Tiles>
HopperTiles hopper_tiles(const Tiles& tiles, bool by_key) {
  HopperTiles result{tiles.queries(), tiles.keys(), by_key, {}, {0}, tiles.masks()};
  const int64_t count = by_key ? tiles.key_tiles() : tiles.query_tiles();
  for (int64_t tile = 0; tile < count; ++tile) {
    for (const auto& run : by_key ? tiles.column(tile) : tiles.row(tile))
      result.runs.push_back({run.first, run.count, run.mask});
    result.starts.push_back(static_cast<int32_t>(result.runs.size()));
  }
  return result;
}

// For `examples` x `heads` of a longspan::Layout.
template <class Layout>
HopperHostLists hopper_lists(HopperStep step, bool wide, bool gathered,
                             const Layout& layout, int64_t examples, int64_t heads) {
  std::vector<HopperTiles> patterns;
  for (int64_t p = 0; p < layout.patterns(); ++p)
    patterns.push_back(hopper_tiles(layout.tiles(p), step == HopperStep::kKeyGradient));
  std::vector<int64_t> count(patterns.size(), 0);
  for (int64_t example = 0; example < examples; ++example)
    for (int64_t head = 0; head < heads; ++head)
      ++count[layout.pattern_of(example, head)];
  const HopperKernel kernel =
      gathered ? HopperKernel::kGathered : hopper_kernel(step, wide, patterns);
  return hopper_lists(step, kernel, wide, patterns, count);
}

}  // namespace longspan::cuda
