// Block-sparse attention backward for every type, width and feature: the gradients of
// keys, values and column biases of one source, by place.

#include <type_traits>

#include "longspan/kernels/cuda/attention_launch.cuh"
#include "longspan/kernels/cuda/pair.cuh"
#include "longspan/kernels/cuda/sum_parts.cuh"

namespace longspan::cuda {
namespace {

template <class Stored, int kWidth, Kind kKind>
constexpr int kLeastBlocks = kOnTensorCores<Stored>&& kKind != Kind::kAny ? 2 : 1;

// One piece of a tile of keys, and one chunk of the columns of its gradients. Rows of
// products are keys, columns queries.
template <class Stored, int kWidth, Kind kKind>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<Stored, kWidth, kKind>)
    key_slopes(const __grid_constant__ KeyGradient task, bool all_in_chunks,
               bool with_band) {
  using Number = NumberOf<Stored>;
  using Tile = SharedTile<Stored, kWidth>;
  using Product = TileProduct<Stored, kWidth>;
  using OwnRows = RowsInShared<Stored, kWidth>;
  constexpr bool kFeatures = kHasFeatures<kKind>, kAhead = kBringsAhead<kKind>;

  extern __shared__ __align__(128) char memory[];
  char* const k_tile = memory;
  char* const v_tile = k_tile + Tile::kBytes;
  char* const q_tiles = v_tile + Tile::kBytes;
  char* const slope_tiles = q_tiles + kStages<kKind> * Tile::kBytes;
  auto* const room =
      reinterpret_cast<Number*>(slope_tiles + kStages<kKind> * Tile::kBytes);
  Band<Stored, kWidth> band(reinterpret_cast<char*>(room + kTile * kPairStride));
  __shared__ TileKeys<Number> keys;
  __shared__ TileQueries<Number> queries_ring[3];
  __shared__ HeadSource<Stored> source;
  __shared__ HeadQueries<Stored> head_q;

  const Attention& given = task.given;
  const Work work(task.pieces, given);
  const int thread = threadIdx.x, lane = thread % 32;
  const int own_row = thread / 32 * kWarpRows + lane / 4;
  const auto width = static_cast<int32_t>(given.width);
  const auto value_width = static_cast<int32_t>(given.value_width);
  const bool in_chunks = kAhead || all_in_chunks;
  const int chunks = kAhead ? 1 : (width + kWidth - 1) / kWidth;
  const int value_chunks = kAhead ? 1 : (value_width + kWidth - 1) / kWidth;
  const int own_chunk = kAhead ? 0 : static_cast<int>(blockIdx.y);
  const int own_column = own_chunk * kWidth;
  const bool wants_k = task.k.data && own_chunk < chunks;
  const bool wants_v = task.v.data && own_chunk < value_chunks;
  const bool wants_column = kFeatures && task.column.data && own_chunk == 0;
  const bool wants_slopes = wants_k || wants_column;

  const Stored* const out_slope =
      head_of<const Stored>(task.out_slope, work.example, work.head);
  const auto out_slope_stride = static_cast<int32_t>(task.out_slope.row);
  if (thread == 0)
    open_source(source, given, task.source, work.example, work.head, kFeatures);
  if (thread == 32)
    head_q =
        head_queries<Stored>(given, work.example, work.head, task.lse2, task.delta);
  __syncthreads();

  if (thread >= kTile) {
    const int place = thread - kTile;
    put_keys<kFeatures>(
        keys, {task.source, work.piece.tile, -1}, place,
        row_of_place(source.rows, source.places, work.piece.tile * kTile + place),
        source);
  }
  QueryScout<Stored, kFeatures> scout(
      TileList<true>(given, task.source, task.source + 1, work.example, work.head,
                     thread < kTile ? work.piece : Piece{}),
      head_q);
  if (thread < kTile) scout.put(queries_ring[0]);
  const auto bring_keys = [&](int column) {
    Tile::copy(k_tile, source.k, source.k_stride, keys.row, column, width, in_chunks);
  };
  const auto bring_values = [&](int column) {
    Tile::copy(v_tile, source.v, source.v_stride, keys.row, column, value_width,
               in_chunks);
  };
  const auto bring_queries = [&](const TileQueries<Number>& queries, int stage,
                                 int column) {
    Tile::copy(q_tiles + stage * Tile::kBytes, head_q.q, head_q.stride, queries.row,
               column, width, in_chunks);
  };
  const auto bring_slopes = [&](const TileQueries<Number>& queries, int stage,
                                int column) {
    Tile::copy(slope_tiles + stage * Tile::kBytes, out_slope, out_slope_stride,
               queries.row, column, value_width, in_chunks);
  };
  __syncthreads();
  if (chunks == 1) bring_keys(0);
  if (value_chunks == 1) bring_values(0);
  if (kAhead && queries_ring[0].visit.source >= 0) {
    bring_queries(queries_ring[0], 0, 0);
    bring_slopes(queries_ring[0], 0, 0);
  }
  if (thread < kTile) scout.put(queries_ring[1]);
  close_copies();
  const OwnRows own_keys(k_tile), own_values(v_tile);

  const auto scale2 = static_cast<Number>(given.scale * kLog2E);
  const Number factor = kFeatures ? Number{1} : scale2;
  Number k_slopes[kWidth / 8][4], v_slopes[kWidth / 8][4];
  clear(k_slopes);
  clear(v_slopes);
  Number column_slopes[2] = {0, 0};

  for (int step = 0, slot = 0;; ++step) {
    wait_for_copies();
    __syncthreads();
    const TileQueries<Number>& queries = queries_ring[slot];
    const Visit visit = queries.visit;
    if (visit.source < 0) break;
    slot = slot == 2 ? 0 : slot + 1;
    const int stage = kAhead ? step % 2 : 0;
    if (kAhead && queries_ring[slot].visit.source >= 0) {
      bring_queries(queries_ring[slot], 1 - stage, 0);
      bring_slopes(queries_ring[slot], 1 - stage, 0);
    }
    if (thread < kTile) scout.put(queries_ring[slot == 2 ? 0 : slot + 1]);
    close_copies();

    const TilePairs<true, Stored> pairs(given, source, queries, keys, work.piece.tile,
                                        task.source, work.head_number);
    if (kFeatures && pairs.is_apart()) continue;

    // Empty places of queries need no bits, for their lse2 is infinite; only biases may
    // not be read for them.
    bool whole = visit.mask < 0 && live_places(keys) == ~uint64_t{0};
    uint64_t upper = ~uint64_t{0}, lower = ~uint64_t{0};
    if (visit.mask >= 0) {
      const uint64_t* const words = given.sources[task.source].tiles.by_key +
                                    static_cast<int64_t>(visit.mask) * kTile + own_row;
      upper = __ldg(words);
      lower = __ldg(words + 8);
    }
    if (kFeatures) {
      const uint64_t live = live_places(queries);
      whole = whole && live == ~uint64_t{0};
      upper &= live;
      lower &= live;
    }
    if (keys.row[own_row] < 0) upper = 0;
    if (keys.row[own_row + 8] < 0) lower = 0;
    PairBits seen = PairBits::of(upper, lower);

    Number weights[kBlocks][4], slopes[kBlocks][4];
    clear(weights);
    clear(slopes);
    const char* const q_tile = q_tiles + stage * Tile::kBytes;
    const char* const slope_tile = slope_tiles + stage * Tile::kBytes;
    const bool in_band =
        kHasBand<kKind> && with_band && band.open(pairs, source, width);
    if constexpr (kAhead) {
      if (kHasBand<kKind> && in_band) band.template begin<true>(weights, q_tile, room);
      Product::add_dots(weights, own_keys, q_tile);
      if (wants_slopes) Product::add_dots(slopes, own_values, slope_tile);
    } else {
      // The own chunk comes last, and stays.
      const int most_chunks = chunks > value_chunks ? chunks : value_chunks;
      for (int i = 0; i < most_chunks; ++i) {
        if (i > 0) __syncthreads();
        if (i < chunks) {
          const int column = (own_chunk + 1 + i) % chunks * kWidth;
          if (chunks > 1) bring_keys(column);
          bring_queries(queries, 0, column);
        }
        if (i < value_chunks) {
          const int column = (own_chunk + 1 + i) % value_chunks * kWidth;
          if (value_chunks > 1) bring_values(column);
          bring_slopes(queries, 0, column);
        }
        close_copies();
        wait_for_copies();
        __syncthreads();
        if (kHasBand<kKind> && in_band && i == 0)
          band.template begin<true>(weights, q_tile, room);
        if (i < chunks) Product::add_dots(weights, own_keys, q_tile);
        if (i < value_chunks) Product::add_dots(slopes, own_values, slope_tile);
      }
    }

    PairBits kept;
    const bool drops = kFeatures && given.dropout.limit > 0;
    if (kFeatures) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) weights[b][e] *= scale2;
      whole = !pairs.hide(seen) && whole;
      if (kHasBand<kKind> && in_band) band.template add_table<true>(weights);
      pairs.add_biases(weights, seen, head_q.q, head_q.stride, room, in_band);
      if (drops) kept = pairs.kept();
    }
    if (!whole) hide_unseen(weights, seen);
    const auto kept_factor = static_cast<Number>(given.dropout.factor);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = 8 * b + lane % 4 * 2;
      const auto lse2 = *reinterpret_cast<const PairOf<Number>*>(queries.lse2 + column);
      const auto delta =
          *reinterpret_cast<const PairOf<Number>*>(queries.delta + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Number weight =
            exp2_of(fused(weights[b][e], factor, e % 2 == 0 ? -lse2.x : -lse2.y));
        Number slope = slopes[b][e];
        weights[b][e] = weight;
        if (kFeatures && drops) {
          slope = kept.at(b, e) ? slope * kept_factor : Number{0};
          if (!kept.at(b, e)) weights[b][e] = 0;
        }
        slopes[b][e] = weight * (slope - (e % 2 == 0 ? delta.x : delta.y));
        if (kFeatures) column_slopes[e / 2] += slopes[b][e];
      }
    }
    if (wants_v) Product::add_weighted(v_slopes, weights, slope_tile, room);
    if (wants_k) Product::add_weighted(k_slopes, slopes, q_tile, room);
  }

  const auto write = [&](const Rows<void>& to, void* parts, int32_t columns,
                         const Number(&numbers)[kWidth / 8][4], int half, Number by) {
    const int place = own_row + half * 8;
    const int64_t at = int64_t{work.piece.tile} * kTile + place;
    if (work.piece.part >= 0) {
      const int64_t part =
          static_cast<int64_t>(work.head_number) * task.pieces.parts + work.piece.part;
      write_row(static_cast<Number*>(parts) + (part * kTile + place) * columns, numbers,
                half, by, own_column, columns);
    } else if (at < source.places) {
      if (task.exact)
        write_row(head_of<Number>(to, work.example, work.head) + at * to.row, numbers,
                  half, by, own_column, columns);
      else
        write_row(head_of<Stored>(to, work.example, work.head) + at * to.row, numbers,
                  half, by, own_column, columns);
    }
  };
#pragma unroll
  for (int half = 0; half < 2; ++half)
    column_slopes[half] = sum_of_row(column_slopes[half]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (wants_k)
      write(task.k, task.part_k, width, k_slopes, half,
            static_cast<Number>(given.scale));
    if (wants_v)
      write(task.v, task.part_v, value_width, v_slopes, half,
            static_cast<Number>(given.dropout.factor));
    if (!wants_column) continue;
    const int place = own_row + half * 8;
    const int64_t at = int64_t{work.piece.tile} * kTile + place;
    const Number sum = column_slopes[half];
    if (lane % 4 != 0) continue;
    if (work.piece.part >= 0) {
      const int64_t part =
          static_cast<int64_t>(work.head_number) * task.pieces.parts + work.piece.part;
      static_cast<Number*>(task.part_column)[part * kTile + place] = sum;
    } else if (at < source.places) {
      head_of<Number>(task.column, work.example, work.head)[at * task.column.row] = sum;
    }
  }
}

}  // namespace

int key_gradient(const KeyGradient& task, Stream stream) {
  const Attention& given = task.given;
  const bool all_in_chunks = in_chunks(given) && in_chunks(task.out_slope, given.type);
  const int64_t heads = given.examples * given.heads;
  return choose_instance(
      given, all_in_chunks, [&]<class Stored, int kWidth, Kind kKind>() {
        using Number = NumberOf<Stored>;
        const int bytes = (2 + 2 * kStages<kKind>)*SharedTile<Stored, kWidth>::kBytes +
                          room_bytes<Stored>(given);
        int error = launch_with_band<Stored, kWidth, kKind>(
            given, [&](bool with_band, int band_bytes) {
              return launch_blocks<key_slopes<Stored, kWidth, kKind>>(
                  heads * task.pieces.count, chunks_of(widest(given), kWidth),
                  bytes + band_bytes, stream, task, all_in_chunks, with_band);
            });
        const int64_t places = given.sources[task.source].places;
        const auto sum = [&](const void* parts, const Rows<void>& to, int64_t width,
                             bool exact) {
          if (error != cudaSuccess) return;
          const PartSums sums = {parts,  to,    Ints{},     given.heads,
                                 places, width, task.pieces};
          error = exact
                      ? launch_sum_parts<Stored, Number>(sums, given.examples, stream)
                      : launch_sum_parts<Stored, Stored>(sums, given.examples, stream);
        };
        sum(task.part_k, task.k, given.width, task.exact);
        sum(task.part_v, task.v, given.value_width, task.exact);
        sum(task.part_column, task.column, 1, true);
        return error;
      });
}

}  // namespace longspan::cuda
