// The tiles that a piece of work visits, one after another.

#pragma once

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {
namespace {

struct Visit {
  int32_t source;  // -1: there is no tile any more
  int32_t tile;
  int32_t mask;  // -1: all pairs
};

// Over sources first_source .. source_end - 1: tiles of keys that a tile of queries
// visits, or where kColumns tiles of queries that visit a tile of keys.
template <bool kColumns>
class TileList {
 public:
  __device__ TileList(const Attention& given, int32_t first_source, int32_t source_end,
                      int32_t example, int32_t head, const Piece& piece)
      : given_(given),
        example_(example),
        head_(head),
        own_tile_(piece.tile),
        source_(first_source - 1),
        source_end_(source_end),
        remaining_(piece.end - piece.first) {
    for (int32_t skip = piece.first; skip > 0;) {
      if (left_ == 0 && !open_run()) return;
      const int32_t some = skip < left_ ? skip : left_;
      tile_ += some;
      left_ -= some;
      skip -= some;
    }
  }

  __device__ Visit next() {
    if (remaining_ <= 0 || (left_ == 0 && !open_run())) return {-1, 0, -1};
    --remaining_;
    --left_;
    return {source_, tile_++, mask_};
  }

 private:
  static __device__ int32_t tiles_of(int64_t places) {
    return static_cast<int32_t>((places + kTile - 1) / kTile);
  }

  __device__ bool open_run() {
    while (left_ == 0) {
      while (run_ == run_end_ && left_ == 0) {
        if (++source_ >= source_end_) {
          source_ = source_end_;
          remaining_ = 0;
          return false;
        }
        open_source();
      }
      if (left_ > 0) return true;
      const Run run = *run_++;
      tile_ = run.first;
      left_ = run.count;
      mask_ = run.mask;
    }
    return true;
  }

  __device__ void open_source() {
    const Source& source = given_.sources[source_];
    const Tiles& tiles = source.tiles;
    const Run* const runs = kColumns ? tiles.column_runs : tiles.row_runs;
    const int32_t query_tiles = tiles_of(given_.places);
    const int32_t key_tiles = tiles_of(source.places);
    if (!runs) {
      tile_ = 0;
      left_ = kColumns ? query_tiles : key_tiles;
      mask_ = -1;
      return;
    }
    const int32_t pattern =
        tiles.pattern
            ? tiles.pattern[(tiles.examples == 1 ? 0 : example_) * tiles.heads +
                            (tiles.heads == 1 ? 0 : head_)]
            : 0;
    const int32_t* const starts =
        (kColumns ? tiles.column_starts : tiles.row_starts) +
        static_cast<int64_t>(pattern) * ((kColumns ? key_tiles : query_tiles) + 1) +
        own_tile_;
    run_ = runs + starts[0];
    run_end_ = runs + starts[1];
  }

  const Attention& given_;
  int32_t example_, head_, own_tile_;
  int32_t source_, source_end_;
  int32_t remaining_;
  const Run* run_ = nullptr;
  const Run* run_end_ = nullptr;
  int32_t tile_ = 0, left_ = 0, mask_ = -1;  // of the run that is open
};

}  // namespace
}  // namespace longspan::cuda
