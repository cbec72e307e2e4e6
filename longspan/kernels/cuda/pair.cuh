// Pairs of a query and a key: which are seen, which dropout keeps, and their biases.
//
// A thread has the pairs of a tile that tile_product.cuh gives it. Rows are queries and
// columns keys, or where kTurned the other way round.

#pragma once

#include "longspan/kernels/cuda/philox.cuh"
#include "longspan/kernels/cuda/tile_rows.cuh"

namespace longspan::cuda {
namespace {

// A bit for each pair of a thread.
class PairBits {
 public:
  // `upper` and `lower`: 64 columns of the two rows of the thread.
  static __device__ __forceinline__ PairBits of(uint64_t upper, uint64_t lower) {
    const int shift = threadIdx.x % 4 * 2;
    upper >>= shift;
    lower >>= shift;
    PairBits bits;
    bits.words_[0][0] = static_cast<uint32_t>(upper);
    bits.words_[0][1] = static_cast<uint32_t>(upper >> 32);
    bits.words_[1][0] = static_cast<uint32_t>(lower);
    bits.words_[1][1] = static_cast<uint32_t>(lower >> 32);
    return bits;
  }

  __device__ __forceinline__ bool at(int b, int e) const {
    return (words_[e / 2][b / 4] & 1u << place(b, e)) != 0;
  }
  __device__ __forceinline__ void clear(int b, int e, bool yes) {
    words_[e / 2][b / 4] &= ~(static_cast<uint32_t>(yes) << place(b, e));
  }

  // Bit 16 * (e / 2) + 2 * b + e % 2 is that of number e of block b.
  __device__ __forceinline__ uint32_t in_order() const {
    return gathered(words_[0][0]) | gathered(words_[0][1]) << 8 |
           gathered(words_[1][0]) << 16 | gathered(words_[1][1]) << 24;
  }

  static __device__ __forceinline__ PairBits from_order(uint32_t bits) {
    PairBits pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs.words_[i / 2][i % 2] = spread(bits >> (8 * i) & 0xff);
    return pairs;
  }

 private:
  static __device__ __forceinline__ int place(int b, int e) {
    return 8 * (b % 4) + e % 2;
  }
  // Bits 0, 1, 8, 9, 16, .. of a word side by side, and back.
  static __device__ __forceinline__ uint32_t gathered(uint32_t word) {
    word &= 0x03030303;
    word = (word | word >> 6) & 0x000f000f;
    return (word | word >> 12) & 0xff;
  }
  static __device__ __forceinline__ uint32_t spread(uint32_t bits) {
    bits = (bits | bits << 12) & 0x000f000f;
    return (bits | bits << 6) & 0x03030303;
  }

  uint32_t words_[2][2];  // [e / 2][b / 4]; other bits mean nothing
};

template <bool kTurned, class Stored>
class TilePairs {
 public:
  using Number = NumberOf<Stored>;

  __device__ TilePairs(const Attention& given, const HeadSource<Stored>& source,
                       const TileQueries<Number>& queries, const TileKeys<Number>& keys,
                       int32_t key_tile, int32_t source_number, int32_t head_number)
      : given_(given),
        source_(source),
        queries_(queries),
        keys_(keys),
        key_tile_(key_tile),
        source_number_(source_number),
        head_number_(head_number) {}

  // Whether intervals or buckets hide all pairs of the tile, as far as the least and
  // the most of its queries tell. For whole warps, all of which find the same.
  __device__ __forceinline__ bool is_apart() const {
    const bool by_interval = source_.has_interval && !source_.outside;
    if (!by_interval && !source_.has_buckets) return false;
    const int lane = threadIdx.x % 32;
    int32_t first = INT32_MAX, last = INT32_MIN, least = INT32_MAX, most = INT32_MIN;
#pragma unroll
    for (int place = lane; place < kTile; place += 32)
      if (queries_.row[place] >= 0) {
        first = min(first, queries_.position[place]);
        last = max(last, queries_.position[place]);
        least = min(least, queries_.bucket[place]);
        most = max(most, queries_.bucket[place]);
      }
    first = __reduce_min_sync(~0u, first);
    last = __reduce_max_sync(~0u, last);
    least = __reduce_min_sync(~0u, least);
    most = __reduce_max_sync(~0u, most);
    bool apart = true;
#pragma unroll
    for (int place = lane; place < kTile; place += 32)
      if (keys_.row[place] >= 0) {
        const bool outside =
            by_interval &&
            (keys_.from[place] > last || (source_.to.data && keys_.to[place] <= first));
        const bool other = source_.has_buckets &&
                           (keys_.bucket[place] < least || keys_.bucket[place] > most);
        apart = apart && (outside || other);
      }
    return __all_sync(~0u, apart);
  }

  // Takes from `seen` what intervals and buckets hide; false where that is nothing.
  __device__ __forceinline__ bool hide(PairBits& seen) const {
    const bool by_interval = source_.has_interval && !is_inside();
    if (by_interval) {
      const bool endless = !source_.to.data, outside = source_.outside;
      each([&](int b, int e, int query, int key) {
        const int32_t position = queries_.position[query];
        const bool inside =
            position >= keys_.from[key] && (endless || position < keys_.to[key]);
        seen.clear(b, e, inside == outside);
      });
    }
    if (source_.has_buckets)
      each([&](int b, int e, int query, int key) {
        seen.clear(b, e, queries_.bucket[query] != keys_.bucket[key]);
      });
    return by_interval || source_.has_buckets;
  }

  // Whether the positions of queries and of keys are consecutive, and so their entries
  // in table and vectors; `origin` becomes that of query 0 and key 0, not cut to what
  // there is. For whole warps, all of which find the same.
  __device__ __forceinline__ bool is_band(int32_t& origin) const {
    if (!source_.by_distance) return false;
    const int lane = threadIdx.x % 32;
    int32_t q_least = INT32_MAX, q_most = INT32_MIN, k_least = INT32_MAX,
            k_most = INT32_MIN;
#pragma unroll
    for (int place = lane; place < kTile; place += 32) {
      if (queries_.row[place] >= 0) {
        q_least = min(q_least, queries_.position[place] - place);
        q_most = max(q_most, queries_.position[place] - place);
      }
      if (keys_.row[place] >= 0) {
        k_least = min(k_least, keys_.position[place] - place);
        k_most = max(k_most, keys_.position[place] - place);
      }
    }
    q_least = __reduce_min_sync(~0u, q_least);
    k_least = __reduce_min_sync(~0u, k_least);
    origin = q_least - k_least - source_.first;
    return q_least == __reduce_max_sync(~0u, q_most) &&
           k_least == __reduce_max_sync(~0u, k_most);
  }

  // Adds the biases, times log2(e); those of table and vectors unless `has_entries`,
  // when they have been added. `q` are the rows of the head; `room` [64, kPairStride]
  // is overwritten where this thread has pairs.
  __device__ __forceinline__ void add_biases(Number (&scores)[kBlocks][4],
                                             const PairBits& seen, const Stored* q,
                                             int32_t q_stride, Number* room,
                                             bool has_entries) const {
    const auto log2e = static_cast<Number>(kLog2E);
    if (source_.column)
      each([&](int b, int e, int, int key) {
        scores[b][e] = fused(keys_.column[key], log2e, scores[b][e]);
      });
    if (source_.slope) {
      const Number slope = -*source_.slope * log2e;
      each([&](int b, int e, int query, int key) {
        scores[b][e] = fused(slope, distance(query, key), scores[b][e]);
      });
    }
    if (!source_.has_pair_bias || (has_entries && !source_.dense)) return;
    if (!source_.vectors && !source_.dense && !source_.labels) {
      each([&](int b, int e, int query, int key) {
        scores[b][e] = fused(source_.table[entry(query, key)], log2e, scores[b][e]);
      });
      return;
    }
    stage_pair_biases(seen.in_order(), q, q_stride, room, has_entries);
    __syncwarp();
    each([&](int b, int e, int query, int key) {
      scores[b][e] +=
          room[kTurned ? key * kPairStride + query : query * kPairStride + key];
    });
  }

  // The pairs that dropout keeps.
  __device__ __forceinline__ PairBits kept() const {
    const uint32_t limit = given_.dropout.limit;
    // The rows of keys are consecutive, so that lanes can share the words of four keys.
    if (!source_.rows.data) return kTurned ? kept_turned(limit) : kept_upright(limit);
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      const int row = own_row(i / 16), column = own_column(i / 2 % 8, i % 2);
      const auto key = static_cast<uint32_t>(keys_.row[kTurned ? row : column]);
      uint32_t words[4];
      draw(words, key / 4, queries_.row[kTurned ? column : row]);
      const uint32_t word = key % 4 == 0   ? words[0]
                            : key % 4 == 1 ? words[1]
                            : key % 4 == 2 ? words[2]
                                           : words[3];
      bits |= static_cast<uint32_t>(word >= limit) << i;
    }
    return PairBits::from_order(bits);
  }

  // The entry of table and vectors that a pair uses.
  __device__ __forceinline__ int32_t entry(int query, int key) const {
    if (source_.labels)
      return source_
          .labels[queries_.row[query] * source_.labels_stride + keys_.row[key]];
    const int32_t p = queries_.position[query], k = keys_.position[key];
    if (source_.grid_width == 0)
      return bounded(p - k - source_.first, source_.entry_rows);
    const int32_t width = source_.grid_width;
    const int32_t p_row = grid_row(p), k_row = grid_row(k);
    const int32_t row = bounded(p_row - k_row - source_.first, source_.entry_rows);
    const int32_t column =
        bounded((p - p_row * width) - (k - k_row * width) - source_.first_column,
                source_.entry_columns);
    return row * source_.entry_columns + column;
  }

  __device__ __forceinline__ Number distance(int query, int key) const {
    const int32_t difference = queries_.position[query] - keys_.position[key];
    return static_cast<Number>(difference < 0 ? -difference : difference);
  }

  // work(b, e, query, key) for all pairs of the thread.
  template <class Work>
  static __device__ __forceinline__ void each(const Work& work) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = own_row(e / 2), column = own_column(b, e % 2);
        work(b, e, kTurned ? column : row, kTurned ? row : column);
      }
  }

 private:
  // Whether the intervals of all keys hold all queries of the tile: with padding they
  // mostly do. For whole warps.
  __device__ __forceinline__ bool is_inside() const {
    if (source_.outside) return false;
    const int lane = threadIdx.x % 32;
    int32_t first = INT32_MAX, last = INT32_MIN;
#pragma unroll
    for (int place = lane; place < kTile; place += 32)
      if (queries_.row[place] >= 0) {
        first = min(first, queries_.position[place]);
        last = max(last, queries_.position[place]);
      }
    first = __reduce_min_sync(~0u, first);
    last = __reduce_max_sync(~0u, last);
    bool inside = true;
#pragma unroll
    for (int place = lane; place < kTile; place += 32)
      if (keys_.row[place] >= 0)
        inside = inside && keys_.from[place] <= first &&
                 (!source_.to.data || keys_.to[place] > last);
    return __all_sync(~0u, inside);
  }

  static __device__ __forceinline__ int own_row(int half) {
    return threadIdx.x / 32 * kWarpRows + threadIdx.x % 32 / 4 + half * 8;
  }
  static __device__ __forceinline__ int own_column(int b, int x) {
    return 8 * b + threadIdx.x % 4 * 2 + x;
  }
  static __device__ __forceinline__ int32_t bounded(int32_t x, int32_t count) {
    return x < 0 ? 0 : x >= count ? count - 1 : x;
  }
  // The position over the width of the grid, rounded down.
  __device__ __forceinline__ int32_t grid_row(int32_t position) const {
    return position < 0 ? ~source_.by_grid_width(~position)
                        : source_.by_grid_width(position);
  }

  __device__ __forceinline__ void draw(uint32_t (&words)[4], uint32_t four_keys,
                                       int32_t query_row) const {
    words[0] = four_keys;
    words[1] = static_cast<uint32_t>(query_row);
    words[2] = static_cast<uint32_t>(head_number_);
    words[3] = static_cast<uint32_t>(source_number_);
    philox(given_.dropout.key, words);
  }

  // Four keys are columns of two neighbouring lanes: the even one draws for the upper
  // row, the odd one for the lower.
  __device__ __forceinline__ PairBits kept_upright(uint32_t limit) const {
    const int lane = threadIdx.x % 32;
    const bool odd = lane % 2 == 1;
    const int32_t query_row = queries_.row[own_row(odd ? 1 : 0)];
    const auto first = static_cast<uint32_t>(key_tile_) * (kTile / 4) + lane % 4 / 2;
    uint32_t bits = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t words[4];
      draw(words, first + 2 * b, query_row);
      const uint32_t other0 = __shfl_xor_sync(~0u, odd ? words[0] : words[2], 1);
      const uint32_t other1 = __shfl_xor_sync(~0u, odd ? words[1] : words[3], 1);
      bits |= static_cast<uint32_t>((odd ? other0 : words[0]) >= limit) << (2 * b);
      bits |= static_cast<uint32_t>((odd ? other1 : words[1]) >= limit) << (2 * b + 1);
      bits |= static_cast<uint32_t>((odd ? words[2] : other0) >= limit) << (2 * b + 16);
      bits |= static_cast<uint32_t>((odd ? words[3] : other1) >= limit) << (2 * b + 17);
    }
    return PairBits::from_order(bits);
  }

  // Four keys are rows of four lanes, which have the same columns: each draws for one
  // of the four numbers of a block, and then they exchange words.
  __device__ __forceinline__ PairBits kept_turned(uint32_t limit) const {
    const int lane = threadIdx.x % 32;
    const int mine = lane / 4 % 4;
    const auto four_keys =
        (static_cast<uint32_t>(key_tile_) * kTile + threadIdx.x / 32 * kWarpRows +
         mine / 2 * 8 + lane / 16 * 4) /
        4;
    uint32_t bits = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t words[4];
      draw(words, four_keys, queries_.row[own_column(b, mine % 2)]);
      exchange(words[0], words[1], 4, mine % 2 == 1);
      exchange(words[2], words[3], 4, mine % 2 == 1);
      exchange(words[0], words[2], 8, mine / 2 == 1);
      exchange(words[1], words[3], 8, mine / 2 == 1);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        bits |= static_cast<uint32_t>(words[e] >= limit)
                << (16 * (e / 2) + 2 * b + e % 2);
    }
    return PairBits::from_order(bits);
  }

  // One step of a transposition between lanes that differ in a bit.
  static __device__ __forceinline__ void exchange(uint32_t& low, uint32_t& high,
                                                  int lanes, bool is_high) {
    const uint32_t got = __shfl_xor_sync(~0u, is_high ? low : high, lanes);
    if (is_high)
      low = got;
    else
      high = got;
  }

  // The sums of table, vectors and dense of the pairs of this thread.
  __device__ __forceinline__ void stage_pair_biases(uint32_t seen, const Stored* q,
                                                    int32_t q_stride, Number* room,
                                                    bool has_entries) const {
    const auto width = static_cast<int32_t>(given_.width);
    const auto scale = static_cast<Number>(given_.scale);
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      const int row = own_row(i / 16), column = own_column(i / 2 % 8, i % 2);
      const int query = kTurned ? column : row, key = kTurned ? row : column;
      Number sum = 0;
      if (seen >> i & 1) {
        const int32_t query_row = queries_.row[query];
        if (source_.dense)
          sum += source_.dense[query_row * source_.dense_stride + keys_.row[key]];
        if (!has_entries && (source_.table || source_.vectors)) {
          const int32_t at = entry(query, key);
          if (source_.table) sum += source_.table[at];
          if (source_.vectors) {
            const Number* const vector = source_.vectors + at * source_.vectors_stride;
            const Stored* const numbers =
                q + static_cast<int64_t>(query_row) * q_stride;
            Number product = 0;
#pragma unroll 4
            for (int x = 0; x < width; ++x)
              product = fused(to_number(numbers[x]), vector[x], product);
            sum = fused(scale, product, sum);
          }
        }
      }
      room[row * kPairStride + column] = sum * static_cast<Number>(kLog2E);
    }
  }

  const Attention& given_;
  const HeadSource<Stored>& source_;
  const TileQueries<Number>& queries_;
  const TileKeys<Number>& keys_;
  int32_t key_tile_, source_number_, head_number_;
};

template <class Number>
__device__ __forceinline__ void hide_unseen(Number (&scores)[kBlocks][4],
                                            const PairBits& seen) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (!seen.at(b, e)) scores[b][e] = -infinity<Number>();
}

}  // namespace
}  // namespace longspan::cuda
