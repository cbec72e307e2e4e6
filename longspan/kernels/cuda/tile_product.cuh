// Tiles of 64 rows in shared memory, and their products by four warps, each of which
// owns 16 rows of the result.
//
// In a result of 16 rows, number e of block b of a lane is that at
//   row lane / 4 + e / 2 * 8, column 8 * b + lane % 4 * 2 + e % 2,
// for every type: as mma.sync has it.

#pragma once

#include "longspan/kernels/cuda/attention.h"
#include "longspan/kernels/cuda/numbers.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpRows = 16;
constexpr int kBlocks = kTile / 8;  // of a row of 64 numbers

// Rows of numbers of pairs, so far apart that warps meet no bank twice.
constexpr int kPairStride = 72;

template <class Stored>
constexpr bool kOnTensorCores = sizeof(Stored) == 2;

// [64, kWidth] of stored numbers, in chunks of 16 bytes. For matrix loads the chunks of
// a row are permuted by the row, else rows are 16 bytes apart.
template <class Stored, int kWidth>
struct SharedTile {
  static constexpr int kInChunk = 16 / sizeof(Stored);
  static constexpr int kChunks = kWidth / kInChunk;
  static constexpr int kStride =
      kWidth * sizeof(Stored) + (kOnTensorCores<Stored> ? 0 : 16);
  static constexpr int kBytes = kTile * kStride;

  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kStride + ((kOnTensorCores<Stored> ? chunk ^ (row & 7) : chunk) << 4);
  }

  // Begins to fill the tile with columns column .. column + kWidth - 1 of rows of
  // `from`, which are `stride` numbers apart and `width` wide; zeros where a row is -1
  // and beyond the width. `in_chunks`: every row begins at a multiple of 16 bytes.
  static __device__ __forceinline__ void copy(char* tile, const Stored* from,
                                              int32_t stride, const int32_t* rows,
                                              int column, int width, bool in_chunks) {
    const int thread = threadIdx.x;
    if (in_chunks) {
      constexpr int kRowsAtOnce = kThreads / kChunks;
      const int first = thread / kChunks, chunk = thread % kChunks;
      const int left = (width - column - chunk * kInChunk) * int{sizeof(Stored)};
      const int bytes = left < 0 ? 0 : left > 16 ? 16 : left;
      const uint32_t to = shared_address(tile);
      const Stored* const at = from + column + chunk * kInChunk;
#pragma unroll
      for (int i = 0; i < kTile / kRowsAtOnce; ++i) {
        const int row = first + i * kRowsAtOnce;
        const int32_t source = rows[row];
        const bool there = source >= 0 && bytes > 0;
        copy_16(to + offset(row, chunk),
                there ? at + static_cast<int64_t>(source) * stride : from,
                there ? bytes : 0);
      }
    } else {
#pragma unroll 1
      for (int i = thread; i < kTile * kWidth; i += kThreads) {
        const int row = i / kWidth, x = i % kWidth;
        const int32_t source = rows[row];
        Stored number = to_stored<Stored>(0);
        if (source >= 0 && column + x < width)
          number = from[static_cast<int64_t>(source) * stride + column + x];
        *reinterpret_cast<Stored*>(tile + offset(row, x / kInChunk) +
                                   x % kInChunk * sizeof(Stored)) = number;
      }
    }
  }
};

// The rows of a tile that a warp owns, as left factors of products.
template <class Stored, int kWidth>
class RowsInShared {
 public:
  __device__ explicit RowsInShared(const char* tile)
      : tile_(tile), address_(shared_address(tile)) {}

  __device__ __forceinline__ void get(int step, uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    load_matrices(
        to, address_ + SharedTile<Stored, kWidth>::offset(warp * kWarpRows + lane % 16,
                                                          step * 2 + lane / 16));
  }
  __device__ const char* tile() const { return tile_; }

 private:
  const char* tile_;
  uint32_t address_;
};

// The same, kept in registers.
template <class Stored, int kWidth>
class RowsInRegisters {
 public:
  __device__ explicit RowsInRegisters(const char* tile) {
    const RowsInShared<Stored, kWidth> rows(tile);
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) rows.get(step, matrices_[step]);
  }

  __device__ __forceinline__ void get(int step, uint32_t (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = matrices_[step][i];
  }

 private:
  uint32_t matrices_[kWidth / 16][4];
};

template <class Stored, int kWidth>
struct TileProduct {
  using Number = NumberOf<Stored>;
  using Tile = SharedTile<Stored, kWidth>;

  // sums [16, 64] += own rows of `left` * transposed `right`.
  template <class Left>
  static __device__ __forceinline__ void add_dots(Number (&sums)[kBlocks][4],
                                                  const Left& left, const char* right) {
    const int lane = threadIdx.x % 32;
    if constexpr (kOnTensorCores<Stored>) {
      const uint32_t address = shared_address(right);
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        uint32_t rows[4];
        left.get(step, rows);
#pragma unroll
        for (int n = 0; n < kTile / 16; ++n) {
          uint32_t columns[4];
          load_matrices(columns,
                        address + Tile::offset(n * 16 + lane % 8 + lane / 16 * 8,
                                               step * 2 + lane / 8 % 2));
          add_product(Stored{}, sums[2 * n], rows, columns[0], columns[1]);
          add_product(Stored{}, sums[2 * n + 1], rows, columns[2], columns[3]);
        }
      }
    } else {
      constexpr int kAtOnce = Tile::kInChunk;
      const int row = threadIdx.x / 32 * kWarpRows + lane / 4;
      const int column = lane % 4 * 2;
#pragma unroll 1
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        Chunk rows[2];
        rows[0] = chunk_of(left.tile(), row, chunk);
        rows[1] = chunk_of(left.tile(), row + 8, chunk);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int x = 0; x < 2; ++x) {
            const Chunk other = chunk_of(right, 8 * b + column + x, chunk);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
              sums[b][x] = fused(rows[0].numbers[i], other.numbers[i], sums[b][x]);
              sums[b][2 + x] =
                  fused(rows[1].numbers[i], other.numbers[i], sums[b][2 + x]);
            }
          }
      }
    }
  }

  // sums [16, kWidth] += weights [16, 64] * right. `room`: [64, kPairStride], of which
  // types without tensor cores use the rows of the warp; `is_put`: put() was called.
  static __device__ __forceinline__ void add_weighted(
      Number (&sums)[kWidth / 8][4], const Number (&weights)[kBlocks][4],
      const char* right, Number* room, bool is_put = false) {
    const int lane = threadIdx.x % 32;
    if constexpr (kOnTensorCores<Stored>) {
      const uint32_t address = shared_address(right);
#pragma unroll
      for (int step = 0; step < kTile / 16; ++step) {
        const auto& low = weights[2 * step];
        const auto& high = weights[2 * step + 1];
        const uint32_t rows[4] = {
            packed(Stored{}, low[0], low[1]), packed(Stored{}, low[2], low[3]),
            packed(Stored{}, high[0], high[1]), packed(Stored{}, high[2], high[3])};
#pragma unroll
        for (int n = 0; n < kWidth / 16; ++n) {
          uint32_t columns[4];
          load_transposed(columns, address + Tile::offset(step * 16 + lane % 16,
                                                          n * 2 + lane / 16));
          add_product(Stored{}, sums[2 * n], rows, columns[0], columns[1]);
          add_product(Stored{}, sums[2 * n + 1], rows, columns[2], columns[3]);
        }
      }
    } else {
      if (!is_put) put(weights, room);
      __syncwarp();
      constexpr int kAtOnce = Tile::kInChunk;
      const int row = threadIdx.x / 32 * kWarpRows + lane / 4;
      const int column = lane % 4 * 2;
#pragma unroll 1
      for (int first = 0; first < kTile; first += kAtOnce) {
        const Chunk upper =
            *reinterpret_cast<const Chunk*>(room + row * kPairStride + first);
        const Chunk lower =
            *reinterpret_cast<const Chunk*>(room + (row + 8) * kPairStride + first);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const auto* const numbers =
              reinterpret_cast<const Number*>(right + (first + i) * Tile::kStride) +
              column;
#pragma unroll
          for (int b = 0; b < kWidth / 8; ++b) {
            const auto pair = *reinterpret_cast<const PairOf<Number>*>(numbers + 8 * b);
            sums[b][0] = fused(upper.numbers[i], pair.x, sums[b][0]);
            sums[b][1] = fused(upper.numbers[i], pair.y, sums[b][1]);
            sums[b][2] = fused(lower.numbers[i], pair.x, sums[b][2]);
            sums[b][3] = fused(lower.numbers[i], pair.y, sums[b][3]);
          }
        }
      }
      __syncwarp();
    }
  }

  // A result of 64 columns to `pairs` [64, kPairStride].
  static __device__ __forceinline__ void put(const Number (&from)[kBlocks][4],
                                             Number* pairs) {
    const int lane = threadIdx.x % 32;
    Number* const to =
        pairs + (threadIdx.x / 32 * kWarpRows + lane / 4) * kPairStride + lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<PairOf<Number>*>(to + half * 8 * kPairStride + 8 * b) = {
            from[b][2 * half], from[b][2 * half + 1]};
  }

 private:
  struct alignas(16) Chunk {
    Number numbers[16 / sizeof(Number)];
  };

  static __device__ __forceinline__ Chunk chunk_of(const char* tile, int row,
                                                   int chunk) {
    return *reinterpret_cast<const Chunk*>(tile + Tile::offset(row, chunk));
  }
};

template <class Number, int kCount>
__device__ __forceinline__ void clear(Number (&numbers)[kCount][4]) {
#pragma unroll
  for (int b = 0; b < kCount; ++b)
#pragma unroll
    for (int e = 0; e < 4; ++e) numbers[b][e] = 0;
}

// Columns column, column + 1, .. of one own row of a result, as far as `width` goes, to
// the row that begins at `to`.
template <class Out, class Number, int kCount>
__device__ __forceinline__ void write_row(Out* to, const Number (&numbers)[kCount][4],
                                          int half, Number factor, int column,
                                          int width) {
  const int lane = threadIdx.x % 32;
  const bool in_pairs =
      width % 2 == 0 && reinterpret_cast<uintptr_t>(to) % (2 * sizeof(Out)) == 0;
#pragma unroll
  for (int b = 0; b < kCount; ++b) {
    const int x = column + 8 * b + lane % 4 * 2;
    const Out first = to_stored<Out>(numbers[b][2 * half] * factor);
    const Out second = to_stored<Out>(numbers[b][2 * half + 1] * factor);
    if (in_pairs) {
      if (x < width) *reinterpret_cast<PairOf<Out>*>(to + x) = {first, second};
    } else {
      if (x < width) to[x] = first;
      if (x + 1 < width) to[x + 1] = second;
    }
  }
}

}  // namespace
}  // namespace longspan::cuda
