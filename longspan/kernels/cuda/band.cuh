// Biases by distance where the positions of a tile are consecutive: they lie on its 127
// diagonals, column 63 + query - key of what is here called its band. Vectors are
// multiplied as tiles of keys are, in two halves of 64 columns.

#pragma once

#include <type_traits>

#include "longspan/kernels/cuda/pair.cuh"

namespace longspan::cuda {
namespace {

template <class Stored, int kWidth>
class Band {
 public:
  using Number = NumberOf<Stored>;
  using Tile = SharedTile<Stored, kWidth>;
  using Product = TileProduct<Stored, kWidth>;

  // Vectors are numbers that compute: what rounding takes of them has tiles of its own.
  static constexpr int kParts = sizeof(Stored) == sizeof(Number)        ? 1
                                : std::is_same_v<Stored, __nv_bfloat16> ? 3
                                                                        : 2;
  // Of shared memory, for tables alone and for vectors.
  static constexpr int kTableBytes = 2 * kTile * int{sizeof(Number)};
  static constexpr int kBytes =
      kTableBytes + kParts * Tile::kBytes + kTile * kPairStride * int{sizeof(Number)};

  __device__ explicit Band(char* memory)
      : table_(reinterpret_cast<Number*>(memory)),
        parts_(memory + kTableBytes),
        room_(reinterpret_cast<Number*>(parts_ + kParts * Tile::kBytes)) {}

  // False where the positions of the tile are not consecutive.
  template <class Pairs>
  __device__ __forceinline__ bool open(const Pairs& pairs,
                                       const HeadSource<Stored>& source, int width) {
    int32_t origin;
    if (!pairs.is_band(origin)) return false;
    source_ = &source;
    first_ = origin - (kTile - 1);
    width_ = width;
    return true;
  }

  __device__ __forceinline__ int32_t entry(int column) const {
    const int32_t at = first_ + column;
    return at < 0 ? 0 : at >= source_->entry_rows ? source_->entry_rows - 1 : at;
  }

  // Those below are called by all threads of a block.

  // scores = q . vector. Rows of `scores` are queries, which `queries` has, or where
  // kTurned keys, and `queries` is their tile. `room`: [64, kPairStride].
  template <bool kTurned, class Queries>
  __device__ __forceinline__ void begin(Number (&scores)[kBlocks][4],
                                        const Queries& queries, Number* room) const {
    __syncthreads();
    if (source_->table) table_[threadIdx.x] = source_->table[entry(threadIdx.x)];
    if (!source_->vectors) {
      __syncthreads();
      return;
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      if (half > 0) __syncthreads();
      const int parts = put_vectors(half);
      Number products[kBlocks][4];
      clear(products);
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        const char* const tile = parts_ + part * Tile::kBytes;
        if constexpr (kTurned)  // rows are columns of the band
          Product::add_dots(products, RowsInShared<Stored, kWidth>(tile), queries);
        else
          Product::add_dots(products, queries, tile);
      }
      Product::put(products, half == 0 ? room : room_);
    }
    if (kTurned)
      __syncthreads();
    else
      __syncwarp();
    each<kTurned>([&](int b, int e, int query, int key) {
      const int at = column(query, key), inner = at % kTile;
      scores[b][e] = (at < kTile ? room : room_)[kTurned ? inner * kPairStride + query
                                                         : query * kPairStride + inner];
    });
    __syncthreads();
  }

  // scores += log2(e) * table.
  template <bool kTurned>
  __device__ __forceinline__ void add_table(Number (&scores)[kBlocks][4]) const {
    if (!source_->table) return;
    each<kTurned>([&](int b, int e, int query, int key) {
      scores[b][e] =
          fused(table_[column(query, key)], static_cast<Number>(kLog2E), scores[b][e]);
    });
  }

  // `slopes`, gradients of scores [64, kPairStride], are complete. add(entry, sum).
  template <class Add>
  __device__ __forceinline__ void sum_table(const Number* slopes,
                                            const Add& add) const {
    const int at = threadIdx.x, first = at < kTile ? 0 : at - (kTile - 1);
    const int end = at < kTile ? at + 1 : kTile;
    Number sum = 0;
#pragma unroll 4
    for (int query = first; query < end; ++query)
      sum += slopes[query * kPairStride + query + kTile - 1 - at];
    if (sum != 0) add(entry(at), sum);
  }

  // q_slopes += slope * vector, and add(entry, x, sum of slope * q) if it is `wanted`.
  template <class Add>
  __device__ __forceinline__ void add_gradients(Number (&q_slopes)[kWidth / 8][4],
                                                const char* queries,
                                                const Number* slopes, bool wanted,
                                                const Add& add) const {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      __syncthreads();
      const int parts = put_vectors(half);
      Number weights[kBlocks][4];
      each<false>([&](int b, int e, int query, int inner) {
        weights[b][e] = slope_at(slopes, query, half * kTile + inner);
      });
      // Weights are rounded: a third part of vectors would be less than that.
#pragma unroll 1
      for (int part = 0; part < (parts < 2 ? parts : 2); ++part)
        Product::add_weighted(q_slopes, weights, parts_ + part * Tile::kBytes, room_);
      if (!wanted) continue;
      each<true>([&](int b, int e, int query, int inner) {
        weights[b][e] = slope_at(slopes, query, half * kTile + inner);
      });
      Number sums[kWidth / 8][4];
      clear(sums);
      Product::add_weighted(sums, weights, queries, room_);
      const int row = half * kTile + static_cast<int>(threadIdx.x) / 32 * kWarpRows +
                      static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int b = 0; b < kWidth / 8; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int x = 8 * b + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
          if (x < width_ && sums[b][e] != 0) add(entry(row + e / 2 * 8), x, sums[b][e]);
        }
    }
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ int column(int query, int key) {
    return kTile - 1 + query - key;
  }
  template <bool kTurned, class Visitor>
  static __device__ __forceinline__ void each(const Visitor& visit) {
    TilePairs<kTurned, Stored>::each(visit);
  }
  // 0 where the query has no key of the tile there.
  static __device__ __forceinline__ Number slope_at(const Number* slopes, int query,
                                                    int column) {
    const int key = kTile - 1 + query - column;
    return key >= 0 && key < kTile ? slopes[query * kPairStride + key] : Number{0};
  }

  // Returns, when all threads have put theirs, how many parts there are; often vectors
  // were numbers of the type, and have only one.
  __device__ __forceinline__ int put_vectors(int half) const {
    struct alignas(2 * sizeof(Stored)) Two {
      Stored x, y;
    };
    bool has_rest = false;
#pragma unroll 4
    for (int i = threadIdx.x; i < kTile * kWidth / 2; i += kThreads) {
      const int row = i / (kWidth / 2), x = i % (kWidth / 2) * 2;
      const Number* const from =
          source_->vectors + entry(half * kTile + row) * source_->vectors_stride + x;
      Number first = x < width_ ? from[0] : Number{0},
             second = x + 1 < width_ ? from[1] : Number{0};
      char* to = parts_ + Tile::offset(row, x / Tile::kInChunk) +
                 x % Tile::kInChunk * int{sizeof(Stored)};
#pragma unroll
      for (int part = 0; part < kParts; ++part, to += Tile::kBytes) {
        const Two two = {to_stored<Stored>(first), to_stored<Stored>(second)};
        *reinterpret_cast<Two*>(to) = two;
        first -= to_number(two.x);
        second -= to_number(two.y);
        if (part == 0) has_rest = has_rest || first != 0 || second != 0;
      }
    }
    return __syncthreads_or(has_rest) ? kParts : 1;
  }

  Number* table_;
  char* parts_;
  Number* room_;
  const HeadSource<Stored>* source_ = nullptr;
  int32_t first_ = 0;
  int width_ = 0;
};

}  // namespace
}  // namespace longspan::cuda
