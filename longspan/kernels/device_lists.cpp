#include "longspan/kernels/device_lists.h"

#include <algorithm>
#include <numeric>

#include "longspan/kernels/head_views.h"
#include "longspan/kernels/kept_lists.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kTile = Layout::kTile;

int64_t tiles_of(int64_t count) { return (count + kTile - 1) / kTile; }

int64_t length_of(std::span<const Run> runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const Run& run) { return sum + run.count; });
}

// The mask with queries and keys exchanged.
MaskTile transposed(const MaskTile& mask) {
  MaskTile other = {};
  for (int64_t key = 0; key < kTile; ++key)
    for (int64_t query = 0; query < kTile; ++query)
      other[query] |= (mask[key] >> query & 1) << key;
  return other;
}

// One side of all patterns of a layout: rows or columns.
struct Side {
  std::vector<cuda::Run> runs;
  std::vector<int32_t> starts;

  void add(std::span<const Run> of_tile, int32_t first_mask) {
    for (const auto& [first, count, mask] : of_tile)
      runs.push_back({first, count, mask == Layout::kFull ? -1 : first_mask + mask});
  }
  void mark() { starts.push_back(static_cast<int32_t>(runs.size())); }
};

struct SentPieces {
  size_t pieces, cuts;
  int32_t count, cut_count, parts;

  SentPieces(Parcel& parcel, const CutLists& lists)
      : pieces(parcel.add(lists.pieces)),
        cuts(parcel.add(lists.cuts)),
        count(static_cast<int32_t>(lists.pieces.size())),
        cut_count(static_cast<int32_t>(lists.cuts.size())),
        parts(lists.parts) {}

  cuda::Pieces in(const Tensor& memory) const {
    return {.pieces = Parcel::at<cuda::Piece>(memory, pieces),
            .count = count,
            .cuts = Parcel::at<cuda::Cut>(memory, cuts),
            .cut_count = cut_count,
            .parts = parts};
  }
};

struct SentTiles {
  size_t row_runs, row_starts, column_runs, column_starts, by_query, by_key, pattern;
  int32_t examples, heads;

  SentTiles(Parcel& parcel, const Layout& layout) {
    Side rows, columns;
    std::vector<MaskTile> by_key_masks, by_query_masks;
    for (int64_t p = 0; p < layout.patterns(); ++p) {
      const auto first_mask = static_cast<int32_t>(by_key_masks.size());
      rows.mark();
      for (int64_t tile = 0; tile < layout.query_tiles(); ++tile) {
        rows.add(layout.row(p, tile), first_mask);
        rows.mark();
      }
      columns.mark();
      for (int64_t tile = 0; tile < layout.key_tiles(); ++tile) {
        columns.add(layout.column(p, tile), first_mask);
        columns.mark();
      }
      for (const MaskTile& mask : layout.masks(p)) {
        by_key_masks.push_back(mask);
        by_query_masks.push_back(transposed(mask));
      }
    }
    row_runs = parcel.add(rows.runs);
    row_starts = parcel.add(rows.starts);
    column_runs = parcel.add(columns.runs);
    column_starts = parcel.add(columns.starts);
    by_query = parcel.add(by_query_masks);
    by_key = parcel.add(by_key_masks);
    pattern = parcel.add(layout.choice().pattern);
    examples = static_cast<int32_t>(layout.choice().examples);
    heads = static_cast<int32_t>(layout.choice().heads);
  }

  cuda::Tiles in(const Tensor& memory) const {
    return {.row_runs = Parcel::at<cuda::Run>(memory, row_runs),
            .row_starts = Parcel::at<int32_t>(memory, row_starts),
            .column_runs = Parcel::at<cuda::Run>(memory, column_runs),
            .column_starts = Parcel::at<int32_t>(memory, column_starts),
            .by_query = Parcel::at<uint64_t>(memory, by_query),
            .by_key = Parcel::at<uint64_t>(memory, by_key),
            .pattern = Parcel::at<int32_t>(memory, pattern),
            .examples = examples,
            .heads = heads};
  }
};

DeviceLists made(const AttentionCall& call, const AttentionSizes& sizes) {
  const int64_t query_tiles = tiles_of(call.query_places());
  const int64_t all_heads = sizes.examples * sizes.heads;
  std::vector<int64_t> row_lengths(query_tiles);
  Parcel parcel;
  std::vector<std::optional<SentTiles>> tiles;
  std::vector<SentPieces> columns;
  for (const Source& source : call.sources) {
    std::vector<int64_t> rows(query_tiles, key_tiles(source));
    std::vector<int64_t> column_lengths(key_tiles(source), query_tiles);
    tiles.emplace_back();
    if (source.layout) {
      const Layout& layout = *source.layout;
      tiles.back().emplace(parcel, layout);
      // Heads with other patterns may have shorter lists.
      const auto longest = [&](auto&& list, int64_t tile) {
        int64_t most = 0;
        for (int64_t p = 0; p < layout.patterns(); ++p)
          most = std::max(most, length_of(list(p, tile)));
        return most;
      };
      for (size_t tile = 0; tile < rows.size(); ++tile)
        rows[tile] =
            longest([&](int64_t p, int64_t t) { return layout.row(p, t); }, tile);
      for (size_t tile = 0; tile < column_lengths.size(); ++tile)
        column_lengths[tile] =
            longest([&](int64_t p, int64_t t) { return layout.column(p, t); }, tile);
    }
    for (size_t tile = 0; tile < rows.size(); ++tile) row_lengths[tile] += rows[tile];
    columns.emplace_back(parcel, cut_lists(column_lengths, all_heads));
  }
  const SentPieces rows(parcel, cut_lists(row_lengths, all_heads));

  DeviceLists lists;
  lists.memory = parcel.sent(call.queries.q.device());
  lists.rows = rows.in(lists.memory);
  for (size_t s = 0; s < tiles.size(); ++s)
    lists.sources.push_back(
        {.tiles = tiles[s] ? tiles[s]->in(lists.memory) : cuda::Tiles{},
         .columns = columns[s].in(lists.memory)});
  return lists;
}

}  // namespace

CutLists cut_lists(const std::vector<int64_t>& lengths, int64_t heads) {
  constexpr int64_t kShortest = 32, kWantedPieces = 512, kTimesMean = 4;
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto count = std::max<int64_t>(1, static_cast<int64_t>(lengths.size()));
  const int64_t longest = std::max(
      kShortest,
      std::min(all * heads / kWantedPieces, kTimesMean * ((all + count - 1) / count)));
  CutLists lists;
  for (size_t tile = 0; tile < lengths.size(); ++tile) {
    const auto number = static_cast<int32_t>(tile);
    const auto length = static_cast<int32_t>(lengths[tile]);
    if (length <= longest) {
      lists.pieces.push_back({.tile = number, .first = 0, .end = length});
      continue;
    }
    const auto parts = static_cast<int32_t>((length + longest - 1) / longest);
    const int32_t each = (length + parts - 1) / parts;
    lists.cuts.push_back({.tile = number, .first = lists.parts, .count = parts});
    for (int32_t part = 0; part < parts; ++part)
      lists.pieces.push_back({.tile = number,
                              .first = std::min(part * each, length),
                              .end = std::min((part + 1) * each, length),
                              .part = lists.parts + part});
    lists.parts += parts;
  }
  std::ranges::stable_sort(
      lists.pieces, std::greater<>(),
      [](const cuda::Piece& piece) { return piece.end - piece.first; });
  return lists;
}

std::shared_ptr<const DeviceLists> device_lists(const AttentionCall& call,
                                                const AttentionSizes& sizes) {
  static auto* const kept = new KeptLists<DeviceLists>;
  return kept->get({call, sizes}, [&] { return made(call, sizes); });
}

}  // namespace longspan
