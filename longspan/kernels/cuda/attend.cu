// Block-sparse attention forward for every type, width and feature.

#include <type_traits>

#include "longspan/kernels/cuda/attention_launch.cuh"
#include "longspan/kernels/cuda/pair.cuh"

namespace longspan::cuda {
namespace {

// A row is scaled anew only when its largest score has grown by so many powers of 2.
constexpr int kSlack = 8;

template <class Stored, int kWidth, Kind kKind>
constexpr int kLeastBlocks = !kOnTensorCores<Stored>                  ? 1
                             : kWidth == 64 && kKind != Kind::kBanded ? 3
                                                                      : 2;

// One piece of a tile of queries, and one chunk of the columns of its result.
// Scores are powers of 2: multiplied by log2(e).
template <class Stored, int kWidth, Kind kKind>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<Stored, kWidth, kKind>)
    attend_tiles(const __grid_constant__ Attend task, bool all_in_chunks,
                 bool with_band) {
  using Number = NumberOf<Stored>;
  using Tile = SharedTile<Stored, kWidth>;
  using Product = TileProduct<Stored, kWidth>;
  constexpr bool kFeatures = kHasFeatures<kKind>, kAhead = kBringsAhead<kKind>;
  constexpr bool kInRegisters = kOnTensorCores<Stored> && kAhead && kWidth == 64;
  using OwnRows = std::conditional_t<kInRegisters, RowsInRegisters<Stored, kWidth>,
                                     RowsInShared<Stored, kWidth>>;

  extern __shared__ __align__(128) char memory[];
  char* const q_tile = memory;
  char* const k_tiles = q_tile + Tile::kBytes;
  char* const v_tiles = k_tiles + kStages<kKind> * Tile::kBytes;
  auto* const room = reinterpret_cast<Number*>(v_tiles + kStages<kKind> * Tile::kBytes);
  Band<Stored, kWidth> band(reinterpret_cast<char*>(room + kTile * kPairStride));
  __shared__ TileQueries<Number> queries;
  __shared__ TileKeys<Number> keys_ring[3];
  __shared__ HeadSource<Stored> sources[kMostSources];

  const Attention& given = task.given;
  const Work work(task.pieces, given);
  const int thread = threadIdx.x, lane = thread % 32;
  const int own_row = thread / 32 * kWarpRows + lane / 4;
  const auto width = static_cast<int32_t>(given.width);
  const auto value_width = static_cast<int32_t>(given.value_width);
  const bool in_chunks = kAhead || all_in_chunks;
  const int chunks = kAhead ? 1 : (width + kWidth - 1) / kWidth;
  const int own_column = kAhead ? 0 : static_cast<int>(blockIdx.y) * kWidth;

  const HeadQueries<Stored> head_q =
      head_queries<Stored>(given, work.example, work.head);
  if (thread < given.source_count)
    open_source(sources[thread], given, thread, work.example, work.head, kFeatures);
  if (thread >= kTile) {
    const int place = thread - kTile;
    put_queries<kFeatures>(
        queries, {0, work.piece.tile, -1}, place,
        row_of_place(head_q.rows, head_q.places, work.piece.tile * kTile + place),
        head_q);
  }
  __syncthreads();

  KeyScout<Stored, kFeatures> scout(
      TileList<false>(given, 0, given.source_count, work.example, work.head,
                      thread < kTile ? work.piece : Piece{}),
      sources);
  if (thread < kTile) scout.put(keys_ring[0]);
  const auto bring_queries = [&](int column) {
    Tile::copy(q_tile, head_q.q, head_q.stride, queries.row, column, width, in_chunks);
  };
  const auto bring_keys = [&](const TileKeys<Number>& keys, int stage, int column) {
    const HeadSource<Stored>& source = sources[keys.visit.source];
    Tile::copy(k_tiles + stage * Tile::kBytes, source.k, source.k_stride, keys.row,
               column, width, in_chunks);
  };
  const auto bring_values = [&](const TileKeys<Number>& keys, int stage) {
    const HeadSource<Stored>& source = sources[keys.visit.source];
    Tile::copy(v_tiles + stage * Tile::kBytes, source.v, source.v_stride, keys.row,
               own_column, value_width, in_chunks);
  };
  if (chunks == 1) bring_queries(0);
  __syncthreads();
  if (kAhead && keys_ring[0].visit.source >= 0) {
    bring_keys(keys_ring[0], 0, 0);
    bring_values(keys_ring[0], 0);
  }
  if (thread < kTile) scout.put(keys_ring[1]);
  close_copies();
  if (kInRegisters) {
    wait_for_copies();
    __syncthreads();
  }
  const OwnRows own_queries(q_tile);

  const auto scale2 = static_cast<Number>(given.scale * kLog2E);
  const Number factor = kFeatures ? Number{1} : scale2;
  Number out[kWidth / 8][4];
  clear(out);
  Number most[2] = {-infinity<Number>(), -infinity<Number>()}, sums[2] = {0, 0};

  for (int step = 0, slot = 0;; ++step) {
    wait_for_copies();
    __syncthreads();
    const TileKeys<Number>& keys = keys_ring[slot];
    const Visit visit = keys.visit;
    if (visit.source < 0) break;
    slot = slot == 2 ? 0 : slot + 1;
    const int stage = kAhead ? step % 2 : 0;
    if (kAhead && keys_ring[slot].visit.source >= 0) {
      bring_keys(keys_ring[slot], 1 - stage, 0);
      bring_values(keys_ring[slot], 1 - stage);
    }
    if (thread < kTile) scout.put(keys_ring[slot == 2 ? 0 : slot + 1]);
    close_copies();

    const HeadSource<Stored>& source = sources[visit.source];
    const TilePairs<false, Stored> pairs(given, source, queries, keys, visit.tile,
                                         visit.source, work.head_number);
    if (kFeatures && pairs.is_apart()) continue;

    const uint64_t live = live_places(keys);
    bool whole = visit.mask < 0 && live == ~uint64_t{0};
    if (kFeatures) whole = whole && live_places(queries) == ~uint64_t{0};
    uint64_t upper = live, lower = live;
    if (visit.mask >= 0) {
      const uint64_t* const words = given.sources[visit.source].tiles.by_query +
                                    static_cast<int64_t>(visit.mask) * kTile + own_row;
      upper &= __ldg(words);
      lower &= __ldg(words + 8);
    }
    if (kFeatures) {
      if (queries.row[own_row] < 0) upper = 0;
      if (queries.row[own_row + 8] < 0) lower = 0;
    }
    PairBits seen = PairBits::of(upper, lower);

    Number scores[kBlocks][4];
    clear(scores);
    const bool in_band =
        kHasBand<kKind> && with_band && band.open(pairs, source, width);
    if (kHasBand<kKind> && in_band)
      band.template begin<false>(scores, own_queries, room);
    if constexpr (kAhead) {
      Product::add_dots(scores, own_queries, k_tiles + stage * Tile::kBytes);
    } else {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        if (chunk > 0) __syncthreads();
        if (chunks > 1) bring_queries(chunk * kWidth);
        bring_keys(keys, 0, chunk * kWidth);
        if (chunk == 0) bring_values(keys, 0);
        close_copies();
        wait_for_copies();
        __syncthreads();
        Product::add_dots(scores, own_queries, k_tiles);
      }
    }

    if (kFeatures) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[b][e] *= scale2;
      whole = !pairs.hide(seen) && whole;
      if (kHasBand<kKind> && in_band) band.template add_table<false>(scores);
      pairs.add_biases(scores, seen, head_q.q, head_q.stride, room, in_band);
    }
    if (!whole) hide_unseen(scores, seen);

    Number tile_most[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      tile_most[half] = larger(scores[0][2 * half], scores[0][2 * half + 1]);
#pragma unroll
      for (int b = 1; b < kBlocks; ++b)
        tile_most[half] = larger(tile_most[half],
                                 larger(scores[b][2 * half], scores[b][2 * half + 1]));
      tile_most[half] *= factor;
    }
    if (__any_sync(
            ~0u, tile_most[0] > most[0] + kSlack || tile_most[1] > most[1] + kSlack)) {
      Number shrink[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Number now = largest_of_row(tile_most[half]);
        const bool grew = now > most[half] + kSlack;
        shrink[half] = grew ? exp2_of(most[half] - now) : Number{1};
        if (grew) most[half] = now;
        sums[half] *= shrink[half];
      }
#pragma unroll
      for (int b = 0; b < kWidth / 8; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[b][e] *= shrink[e / 2];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Number shift = most[half] == -infinity<Number>() ? Number{0} : most[half];
      Number sum = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[b][e] = exp2_of(fused(scores[b][e], factor, -shift));
          sum += scores[b][e];
        }
      sums[half] += sum;
    }
    if (kFeatures && given.dropout.limit > 0) {
      const PairBits kept = pairs.kept();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (!kept.at(b, e)) scores[b][e] = 0;
    }
    Product::add_weighted(out, scores, v_tiles + stage * Tile::kBytes, room);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) sums[half] = sum_of_row(sums[half]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Number sum = sums[half];
    const int place = own_row + half * 8;
    if (work.piece.part >= 0) {
      const int64_t at = (static_cast<int64_t>(work.head_number) * task.pieces.parts +
                          work.piece.part) *
                             kTile +
                         place;
      write_row(static_cast<Number*>(task.parts.out) + at * value_width, out, half,
                Number{1}, own_column, value_width);
      if (own_column == 0 && lane % 4 == 0) {
        static_cast<Number*>(task.parts.most)[at] = most[half];
        static_cast<Number*>(task.parts.sums)[at] = sum;
      }
      continue;
    }
    const int32_t row = queries.row[place];
    if (row < 0) continue;
    const Number weight =
        sum != 0 ? static_cast<Number>(given.dropout.factor) / sum : Number{0};
    write_row(head_of<Stored>(task.out, work.example, work.head) + row * task.out.row,
              out, half, weight, own_column, value_width);
    if (own_column == 0 && lane % 4 == 0)
      head_of<Number>(task.lse, work.example, work.head)[row * task.lse.row] =
          sum != 0 ? (most[half] + log2_of(sum)) * static_cast<Number>(kLn2)
                   : -infinity<Number>();
  }
}

// The result of one tile that was cut, of one head.
template <class Stored>
__global__ void __launch_bounds__(kThreads)
    merge_parts(const __grid_constant__ Attend task) {
  using Number = NumberOf<Stored>;
  const Attention& given = task.given;
  const int32_t head_number = blockIdx.x / task.pieces.cut_count;
  const Cut cut = task.pieces.cuts[blockIdx.x - head_number * task.pieces.cut_count];
  const auto heads = static_cast<int32_t>(given.heads);
  const int32_t example = head_number / heads, head = head_number % heads;
  const int64_t first =
      (static_cast<int64_t>(head_number) * task.pieces.parts + cut.first) * kTile;
  const auto* const parts = static_cast<const Number*>(task.parts.out);
  const auto* const most_of = static_cast<const Number*>(task.parts.most);
  const auto* const sum_of = static_cast<const Number*>(task.parts.sums);
  const HeadInts rows = head_ints(given.rows, example, head);
  // A warp for a row.
  for (int place = threadIdx.x / 32; place < kTile; place += kThreads / 32) {
    const int32_t row = row_of_place(rows, static_cast<int32_t>(given.places),
                                     cut.tile * kTile + place);
    if (row < 0) continue;
    Number most = -infinity<Number>();
    for (int part = 0; part < cut.count; ++part)
      most = larger(most, most_of[first + part * kTile + place]);
    const Number shift = most == -infinity<Number>() ? Number{0} : most;
    Number sum = 0;
    for (int part = 0; part < cut.count; ++part) {
      const int64_t at = first + part * kTile + place;
      sum = fused(sum_of[at], exp2_of(most_of[at] - shift), sum);
    }
    const Number weight =
        sum != 0 ? static_cast<Number>(given.dropout.factor) / sum : Number{0};
    Stored* const out = head_of<Stored>(task.out, example, head) + row * task.out.row;
    for (int x = threadIdx.x % 32; x < given.value_width; x += 32) {
      Number total = 0;
      for (int part = 0; part < cut.count; ++part) {
        const int64_t at = first + part * kTile + place;
        total = fused(parts[at * given.value_width + x], exp2_of(most_of[at] - shift),
                      total);
      }
      out[x] = to_stored<Stored>(total * weight);
    }
    if (threadIdx.x % 32 == 0)
      head_of<Number>(task.lse, example, head)[row * task.lse.row] =
          sum != 0 ? (most + log2_of(sum)) * static_cast<Number>(kLn2)
                   : -infinity<Number>();
  }
}

}  // namespace

int attend(const Attend& task, Stream stream) {
  const Attention& given = task.given;
  const bool all_in_chunks = in_chunks(given);
  const int64_t heads = given.examples * given.heads;
  return choose_instance(
      given, all_in_chunks, [&]<class Stored, int kWidth, Kind kKind>() {
        const int bytes = (1 + 2 * kStages<kKind>)*SharedTile<Stored, kWidth>::kBytes +
                          room_bytes<Stored>(given);
        const int error = launch_with_band<Stored, kWidth, kKind>(
            given, [&](bool with_band, int band_bytes) {
              return launch_blocks<attend_tiles<Stored, kWidth, kKind>>(
                  heads * task.pieces.count, chunks_of(given.value_width, kWidth),
                  bytes + band_bytes, stream, task, all_in_chunks, with_band);
            });
        if (error != cudaSuccess) return error;
        return launch_blocks<merge_parts<Stored>>(heads * task.pieces.cut_count, 1, 0,
                                                  stream, task);
      });
}

}  // namespace longspan::cuda
