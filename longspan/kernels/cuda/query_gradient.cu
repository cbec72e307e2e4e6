// Block-sparse attention backward for every type, width and feature: the gradients of
// queries, and those of biases that are summed over pairs.

#include <type_traits>

#include "longspan/kernels/cuda/attention_launch.cuh"
#include "longspan/kernels/cuda/pair.cuh"
#include "longspan/kernels/cuda/sum_parts.cuh"

namespace longspan::cuda {
namespace {

template <class Stored, int kWidth, Kind kKind>
constexpr int kLeastBlocks = !kOnTensorCores<Stored>                ? 1
                             : kWidth == 64 && !kHasFeatures<kKind> ? 3
                             : kKind == Kind::kAny                  ? 1
                                                                    : 2;

// `value` in units of `fixed`, to the sum `at`.
__device__ __forceinline__ void add_fixed(const FixedSums& fixed, int64_t at,
                                          double value) {
  if (isfinite(value))
    atomicAdd(reinterpret_cast<unsigned long long*>(fixed.sums + at),
              static_cast<unsigned long long>(__double2ll_rn(value)));
  else
    *fixed.unit = nan("");
}

// Sums over all pairs of a source that a block of threads meets, of one chunk of
// columns. Tiles of gradients of scores are [64, kPairStride].
template <class Stored, int kWidth>
class BiasSums {
 public:
  using Number = NumberOf<Stored>;
  using Pairs = TilePairs<false, Stored>;

  // `scratch`: a number for each warp in shared memory.
  __device__ BiasSums(const QueryGradient& task, const Work& work, int own_column,
                      double* scratch)
      : task_(task), work_(work), own_column_(own_column), scratch_(scratch) {
    for (int i = 0; i < task.given.source_count; ++i) write(i, 0);
  }

  __device__ bool wants_tile(const HeadSource<Stored>& source, int number) const {
    const auto& wanted = task_.sources[number];
    return source.has_pair_bias &&
           (source.vectors || wanted.table.sums || wanted.dense.data);
  }

  __device__ __forceinline__ void add_slopes(const Pairs& pairs, int number,
                                             const Number (&slopes)[kBlocks][4]) {
    if (!task_.sources[number].slopes || own_column_ != 0) return;
    Number sum = 0;
    Pairs::each([&](int b, int e, int query, int key) {
      sum = fused(-slopes[b][e], pairs.distance(query, key), sum);
    });
    slope_sum_ += static_cast<double>(sum);
  }

  // `slopes` is complete, and stays until all threads have been here.
  __device__ __forceinline__ void add_tile(const Pairs& pairs,
                                           const TileQueries<Number>& queries,
                                           const TileKeys<Number>& keys, int number,
                                           const HeadQueries<Stored>& head_q,
                                           const Number* slopes,
                                           const Band<Stored, kWidth>* band) {
    const auto& wanted = task_.sources[number];
    if (wanted.dense.data && own_column_ == 0)
      set_dense(wanted.dense, queries, keys, slopes);
    if (wanted.table.sums && own_column_ == 0 && threadIdx.x < 2 * kTile - 1) {
      if (band)
        band->sum_table(slopes, [&](int32_t entry, Number sum) {
          const Bias& bias = task_.given.sources[number].bias;
          add_fixed(wanted.table, first_entry(bias, bias.table, work_.head) + entry,
                    static_cast<double>(sum) / *wanted.table.unit);
        });
      else
        add_table(pairs, queries, keys, number, slopes);
    }
    if (!band && wanted.vectors.sums)
      add_vectors(pairs, queries, keys, number, head_q, slopes);
  }

  // What the vectors of a band have to do with gradients, of queries and of themselves.
  __device__ __forceinline__ void add_band(const Band<Stored, kWidth>& band, int number,
                                           Number (&q_slopes)[kWidth / 8][4],
                                           const char* q_tile, const Number* slopes) {
    const FixedSums& wanted = task_.sources[number].vectors;
    const Bias& bias = task_.given.sources[number].bias;
    const int64_t first = first_entry(bias, bias.vectors, work_.head),
                  width = task_.given.width;
    const double per_unit = wanted.sums ? task_.given.scale / *wanted.unit : 0;
    band.add_gradients(q_slopes, q_tile, slopes, wanted.sums != nullptr,
                       [&](int32_t entry, int x, Number sum) {
                         add_fixed(wanted, (first + entry) * width + x,
                                   static_cast<double>(sum) * per_unit);
                       });
  }

  // After the last tile of a source; called by all threads.
  __device__ void finish(int number) {
    const auto& wanted = task_.sources[number];
    double slope = 0;
    if (wanted.slopes && own_column_ == 0) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2)
        slope_sum_ += __shfl_xor_sync(~0u, slope_sum_, lanes);
      if (threadIdx.x % 32 == 0) scratch_[threadIdx.x / 32] = slope_sum_;
      __syncthreads();
      for (int warp = 0; warp < kThreads / 32; ++warp) slope += scratch_[warp];
      __syncthreads();
    }
    write(number, slope);
    slope_sum_ = 0;
  }

 private:
  __device__ void write(int number, double slope) const {
    const auto& wanted = task_.sources[number];
    const int64_t at = static_cast<int64_t>(work_.piece_number) *
                           (task_.given.examples * task_.given.heads) +
                       work_.head_number;
    if (wanted.slopes && own_column_ == 0 && threadIdx.x == 0)
      wanted.slopes[at] = slope;
  }

  static __device__ bool is_live(const TileQueries<Number>& queries,
                                 const TileKeys<Number>& keys, int query, int key) {
    return queries.row[query] >= 0 && keys.row[key] >= 0;
  }

  // work(query, key, gradient) for the pairs with key - query == diagonal that have a
  // gradient. Along a diagonal neighbours often have the same entry.
  template <class Visitor>
  static __device__ __forceinline__ void along(int diagonal,
                                               const TileQueries<Number>& queries,
                                               const TileKeys<Number>& keys,
                                               const Number* slopes,
                                               const Visitor& visit) {
    const int first = diagonal < 0 ? -diagonal : 0;
    const int end = diagonal < 0 ? kTile : kTile - diagonal;
#pragma unroll 1
    for (int query = first; query < end; ++query) {
      const int key = query + diagonal;
      const Number slope = slopes[query * kPairStride + key];
      if (slope != 0 && is_live(queries, keys, query, key)) visit(query, key, slope);
    }
  }

  __device__ void set_dense(const Rows<void>& dense, const TileQueries<Number>& queries,
                            const TileKeys<Number>& keys, const Number* slopes) const {
    Number* const to = head_of<Number>(dense, work_.example, work_.head);
    const int64_t first = int64_t{keys.visit.tile} * kTile;
#pragma unroll 1
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int query = i / kTile, key = i % kTile;
      const Number slope = slopes[query * kPairStride + key];
      if (slope != 0 && is_live(queries, keys, query, key))
        to[queries.row[query] * dense.row + first + key] = slope;
    }
  }

  // Where the sums of this head begin.
  static __device__ int64_t first_entry(const Bias& bias, const Rows<const void>& rows,
                                        int32_t head) {
    const int64_t entries =
        int64_t{bias.rows} * (bias.grid_width > 0 ? bias.columns : 1);
    return rows.head == 0 ? 0 : head / rows.group * entries;
  }

  __device__ void add_table(const Pairs& pairs, const TileQueries<Number>& queries,
                            const TileKeys<Number>& keys, int number,
                            const Number* slopes) const {
    const auto& wanted = task_.sources[number].table;
    const Bias& bias = task_.given.sources[number].bias;
    const int64_t first = first_entry(bias, bias.table, work_.head);
    const double per_unit = 1 / *wanted.unit;
    int32_t entry = -1;
    Number sum = 0;
    along(static_cast<int>(threadIdx.x) - (kTile - 1), queries, keys, slopes,
          [&](int query, int key, Number slope) {
            const int32_t at = pairs.entry(query, key);
            if (at != entry && entry >= 0)
              add_fixed(wanted, first + entry, static_cast<double>(sum) * per_unit);
            sum = at == entry ? sum + slope : slope;
            entry = at;
          });
    if (entry >= 0)
      add_fixed(wanted, first + entry, static_cast<double>(sum) * per_unit);
  }

  // A thread has one column; where columns are fewer than threads, several threads
  // share the diagonals of a column.
  __device__ void add_vectors(const Pairs& pairs, const TileQueries<Number>& queries,
                              const TileKeys<Number>& keys, int number,
                              const HeadQueries<Stored>& head_q, const Number* slopes) {
    constexpr int kSharing = kThreads / kWidth;
    const int column = own_column_ + static_cast<int>(threadIdx.x) % kWidth;
    const auto width = static_cast<int32_t>(task_.given.width);
    if (column >= width) return;
    const auto& wanted = task_.sources[number];
    const Bias& bias = task_.given.sources[number].bias;
    const int64_t first = first_entry(bias, bias.vectors, work_.head) * width + column;
    const double per_unit = task_.given.scale / *wanted.vectors.unit;
    for (int diagonal = static_cast<int>(threadIdx.x) / kWidth - (kTile - 1);
         diagonal < kTile; diagonal += kSharing) {
      int32_t entry = -1;
      Number product = 0;
      const auto add = [&] {
        if (entry < 0) return;
        add_fixed(wanted.vectors, first + int64_t{entry} * width,
                  static_cast<double>(product) * per_unit);
      };
      along(diagonal, queries, keys, slopes, [&](int query, int key, Number slope) {
        const int32_t at = pairs.entry(query, key);
        if (at != entry) {
          add();
          entry = at;
          product = 0;
        }
        const int64_t row = queries.row[query];
        product =
            fused(slope, to_number(head_q.q[row * head_q.stride + column]), product);
      });
      add();
    }
  }

  const QueryGradient& task_;
  const Work& work_;
  int own_column_;
  double* scratch_;
  double slope_sum_ = 0;
};

// q_slopes += sum over keys of slope * vector of the entry.
template <int kWidth, class Pairs, class Stored, class Number>
__device__ __forceinline__ void add_entry_vectors(Number (&q_slopes)[kWidth / 8][4],
                                                  const Pairs& pairs,
                                                  const HeadSource<Stored>& source,
                                                  const TileQueries<Number>& queries,
                                                  const TileKeys<Number>& keys,
                                                  int own_row, int own_column,
                                                  int width, const Number* slopes) {
  const int column = own_column + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = own_row + half * 8;
    if (queries.row[query] < 0) continue;
#pragma unroll 1
    for (int key = 0; key < kTile; ++key) {
      const Number slope = slopes[query * kPairStride + key];
      if (slope == 0 || keys.row[key] < 0) continue;
      const Number* const vector =
          source.vectors + pairs.entry(query, key) * source.vectors_stride;
#pragma unroll
      for (int b = 0; b < kWidth / 8; ++b)
#pragma unroll
        for (int x = 0; x < 2; ++x)
          if (column + 8 * b + x < width)
            q_slopes[b][2 * half + x] =
                fused(slope, vector[column + 8 * b + x], q_slopes[b][2 * half + x]);
    }
  }
}

// One piece of a tile of queries, and one chunk of the columns of its gradient.
template <class Stored, int kWidth, Kind kKind>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<Stored, kWidth, kKind>)
    query_slopes(const __grid_constant__ QueryGradient task, bool all_in_chunks,
                 bool with_band) {
  using Number = NumberOf<Stored>;
  using Tile = SharedTile<Stored, kWidth>;
  using Product = TileProduct<Stored, kWidth>;
  using OwnRows = RowsInShared<Stored, kWidth>;
  constexpr bool kFeatures = kHasFeatures<kKind>, kAhead = kBringsAhead<kKind>;

  extern __shared__ __align__(128) char memory[];
  char* const q_tile = memory;
  char* const slope_tile = q_tile + Tile::kBytes;
  char* const k_tiles = slope_tile + Tile::kBytes;
  char* const v_tiles = k_tiles + kStages<kKind> * Tile::kBytes;
  auto* const room = reinterpret_cast<Number*>(v_tiles + kStages<kKind> * Tile::kBytes);
  Band<Stored, kWidth> band(reinterpret_cast<char*>(room + kTile * kPairStride));
  __shared__ TileQueries<Number> queries;
  __shared__ TileKeys<Number> keys_ring[3];
  __shared__ HeadSource<Stored> sources[kMostSources];
  __shared__ double scratch[kThreads / 32];

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

  const HeadQueries<Stored> head_q =
      head_queries<Stored>(given, work.example, work.head);
  const Stored* const out_slope =
      head_of<const Stored>(task.out_slope, work.example, work.head);
  const auto out_slope_stride = static_cast<int32_t>(task.out_slope.row);
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
  const auto bring_slopes = [&](int column) {
    Tile::copy(slope_tile, out_slope, out_slope_stride, queries.row, column,
               value_width, in_chunks);
  };
  const auto bring_keys = [&](const TileKeys<Number>& keys, int stage, int column) {
    const HeadSource<Stored>& source = sources[keys.visit.source];
    Tile::copy(k_tiles + stage * Tile::kBytes, source.k, source.k_stride, keys.row,
               column, width, in_chunks);
  };
  const auto bring_values = [&](const TileKeys<Number>& keys, int stage, int column) {
    const HeadSource<Stored>& source = sources[keys.visit.source];
    Tile::copy(v_tiles + stage * Tile::kBytes, source.v, source.v_stride, keys.row,
               column, value_width, in_chunks);
  };
  if (chunks == 1) bring_queries(0);
  if (value_chunks == 1) bring_slopes(0);
  __syncthreads();
  if (kAhead && keys_ring[0].visit.source >= 0) {
    bring_keys(keys_ring[0], 0, 0);
    bring_values(keys_ring[0], 0, 0);
  }
  if (thread < kTile) scout.put(keys_ring[1]);
  close_copies();
  const OwnRows own_queries(q_tile), own_slopes(slope_tile);

  const auto scale2 = static_cast<Number>(given.scale * kLog2E);
  const Number factor = kFeatures ? Number{1} : scale2;
  Number lse2[2], delta[2];
  {
    const auto* const all_lse2 =
        head_of<const Number>(task.lse2, work.example, work.head);
    const auto* const all_delta =
        head_of<const Number>(task.delta, work.example, work.head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = queries.row[own_row + half * 8];
      lse2[half] = row < 0 ? infinity<Number>() : all_lse2[row * task.lse2.row];
      delta[half] = row < 0 ? Number{0} : all_delta[row * task.delta.row];
    }
  }
  Number q_slopes[kWidth / 8][4];
  clear(q_slopes);
  using Sums = std::conditional_t<kFeatures, BiasSums<Stored, kWidth>, Work>;
  [[maybe_unused]] Sums bias_sums = [&] {
    if constexpr (kFeatures)
      return Sums(task, work, own_column, scratch);
    else
      return work;
  }();
  [[maybe_unused]] int last_source = -1;

  for (int step = 0, slot = 0;; ++step) {
    wait_for_copies();
    __syncthreads();
    const TileKeys<Number>& keys = keys_ring[slot];
    const Visit visit = keys.visit;
    if constexpr (kFeatures) {
      if (visit.source != last_source && last_source >= 0)
        bias_sums.finish(last_source);
      last_source = visit.source;
    }
    if (visit.source < 0) break;
    slot = slot == 2 ? 0 : slot + 1;
    const int stage = kAhead ? step % 2 : 0;
    if (kAhead && keys_ring[slot].visit.source >= 0) {
      bring_keys(keys_ring[slot], 1 - stage, 0);
      bring_values(keys_ring[slot], 1 - stage, 0);
    }
    if (thread < kTile) scout.put(keys_ring[slot == 2 ? 0 : slot + 1]);
    close_copies();

    const HeadSource<Stored>& source = sources[visit.source];
    using Pairs = TilePairs<false, Stored>;
    const Pairs pairs(given, source, queries, keys, visit.tile, visit.source,
                      work.head_number);
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

    Number scores[kBlocks][4], slopes[kBlocks][4];
    clear(scores);
    clear(slopes);
    const bool in_band =
        kHasBand<kKind> && with_band && band.open(pairs, source, width);
    if (kHasBand<kKind> && in_band)
      band.template begin<false>(scores, own_queries, room);
    if constexpr (kAhead) {
      Product::add_dots(scores, own_queries, k_tiles + stage * Tile::kBytes);
      Product::add_dots(slopes, own_slopes, v_tiles + stage * Tile::kBytes);
    } else {
      // The own chunk comes last, and stays.
      const int most_chunks = chunks > value_chunks ? chunks : value_chunks;
      for (int i = 0; i < most_chunks; ++i) {
        if (i > 0) __syncthreads();
        const int chunk = (own_chunk + 1 + i) % chunks;
        if (i < chunks) {
          if (chunks > 1) bring_queries(chunk * kWidth);
          bring_keys(keys, 0, chunk * kWidth);
        }
        if (i < value_chunks) {
          if (value_chunks > 1) bring_slopes(i * kWidth);
          bring_values(keys, 0, i * kWidth);
        }
        close_copies();
        wait_for_copies();
        __syncthreads();
        if (i < chunks) Product::add_dots(scores, own_queries, k_tiles);
        if (i < value_chunks) Product::add_dots(slopes, own_slopes, v_tiles);
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
      if (given.dropout.limit > 0) {
        const PairBits kept = pairs.kept();
        const auto kept_factor = static_cast<Number>(given.dropout.factor);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            slopes[b][e] = kept.at(b, e) ? slopes[b][e] * kept_factor : Number{0};
      }
    }
    if (!whole) hide_unseen(scores, seen);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Number weight = exp2_of(fused(scores[b][e], factor, -lse2[e / 2]));
        slopes[b][e] = weight * (slopes[b][e] - delta[e / 2]);
      }

    bool is_put = false;
    if constexpr (kFeatures) {
      if (source.slope) bias_sums.add_slopes(pairs, visit.source, slopes);
      if (bias_sums.wants_tile(source, visit.source)) {
        is_put = true;
        Product::put(slopes, room);
        __syncthreads();
        bias_sums.add_tile(pairs, queries, keys, visit.source, head_q, room,
                           kHasBand<kKind> && in_band ? &band : nullptr);
        if (kHasBand<kKind> && in_band && source.vectors) {
          bias_sums.add_band(band, visit.source, q_slopes, q_tile, room);
          // Read again: so they need no registers before.
          Pairs::each([&](int b, int e, int query, int key) {
            slopes[b][e] = room[query * kPairStride + key];
          });
        } else if (source.vectors) {
          add_entry_vectors<kWidth>(q_slopes, pairs, source, queries, keys, own_row,
                                    own_column, width, room);
        }
        __syncwarp();
      }
    }
    Product::add_weighted(q_slopes, slopes, k_tiles + stage * Tile::kBytes, room,
                          is_put);
  }

  const auto scale = static_cast<Number>(given.scale);
  if (!task.q.data) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = own_row + half * 8;
    if (work.piece.part >= 0) {
      const int64_t at = (static_cast<int64_t>(work.head_number) * task.pieces.parts +
                          work.piece.part) *
                             kTile +
                         place;
      write_row(static_cast<Number*>(task.part_slopes) + at * width, q_slopes, half,
                scale, own_column, width);
    } else if (const int32_t row = queries.row[place]; row >= 0) {
      write_row(head_of<Stored>(task.q, work.example, work.head) + row * task.q.row,
                q_slopes, half, scale, own_column, width);
    }
  }
}

}  // namespace

int query_gradient(const QueryGradient& task, Stream stream) {
  const Attention& given = task.given;
  const bool all_in_chunks = in_chunks(given) && in_chunks(task.out_slope, given.type);
  const int64_t heads = given.examples * given.heads;
  return choose_instance(
      given, all_in_chunks, [&]<class Stored, int kWidth, Kind kKind>() {
        const int bytes = (2 + 2 * kStages<kKind>)*SharedTile<Stored, kWidth>::kBytes +
                          room_bytes<Stored>(given);
        const int error = launch_with_band<Stored, kWidth, kKind>(
            given, [&](bool with_band, int band_bytes) {
              return launch_blocks<query_slopes<Stored, kWidth, kKind>>(
                  heads * task.pieces.count, chunks_of(given.width, kWidth),
                  bytes + band_bytes, stream, task, all_in_chunks, with_band);
            });
        if (error != cudaSuccess) return error;
        return launch_sum_parts<Stored, Stored>(
            {task.part_slopes, task.q, given.rows, given.heads, given.places,
             given.width, task.pieces},
            given.examples, stream);
      });
}

}  // namespace longspan::cuda
