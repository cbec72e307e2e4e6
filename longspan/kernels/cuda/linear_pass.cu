// Four warps, for wider rows eight, go through the chunks of a segment and carry the
// state along in registers. Products with the state take it as the sum of two bfloat16
// numbers.

#include <cuda_runtime.h>

#include "longspan/kernels/cuda/linear_attention.h"
#include "longspan/kernels/cuda/numbers.cuh"
#include "longspan/kernels/cuda/ptx.cuh"

namespace longspan::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kChunk = kLinearChunk;
constexpr int kStages = 2;
constexpr int kPiece = 8;  // numbers in 16 bytes

// How the warps share a chunk of rows of these widths.
template <int kFeatures, int kValues>
struct Shape {
  static constexpr int kWarps = kFeatures + kValues == 128 ? 4 : 8;
  static constexpr int kThreads = kWarps * 32;
  // For ptxas: blocks that should fit on a multiprocessor.
  static constexpr int kBlocks = kFeatures + kValues == 128   ? 3
                                 : kFeatures + kValues == 192 ? 2
                                                              : 1;
  // A warp has 16 rows of the state and some of its columns.
  static constexpr int kStateRows = kFeatures / 16;
  static constexpr int kStateColumns = kValues * kStateRows / kWarps;
  // And 16 rows of the results and some of their columns.
  static constexpr int kOutRows = kChunk / 16;
  static constexpr int kOutColumns = kValues * kOutRows / kWarps;

  static constexpr int kQueryBytes = kChunk * kFeatures * 2;
  static constexpr int kKeyBytes = kChunk * kFeatures * 2;
  static constexpr int kValueBytes = kChunk * kValues * 2;
  static constexpr int kStateBytes = kFeatures * kValues * 2;
};

// Where in a tile of rows of kWidth numbers a piece of a row is: pieces are mixed so
// that those of 8 rows are in different banks.
template <int kWidth>
__device__ __forceinline__ uint32_t place_of(int row, int piece) {
  return row * (kWidth * 2) + ((piece ^ (row & 7)) << 4);
}

template <class Number>
__device__ __forceinline__ Number* head_of(const Rows<Number>& rows, int64_t example,
                                           int64_t head) {
  return rows.data + example * rows.example + head / rows.group * rows.head;
}

struct Head {
  const bf16* data;
  int64_t row;
};

__device__ __forceinline__ Head head_of_rows(const Rows<const void>& rows,
                                             int64_t example, int64_t head) {
  return {static_cast<const bf16*>(rows.data) + example * rows.example +
              head / rows.group * rows.head,
          rows.row};
}

// Begins to copy the rows from `first` on and before `end`, zeros for the rest.
template <int kWidth, int kThreads>
__device__ __forceinline__ void copy_rows(uint32_t to, const Head& from, int64_t first,
                                          int64_t end, int width) {
  constexpr int kPieces = kWidth / kPiece;
#pragma unroll
  for (int i = 0; i < kChunk * kPieces / kThreads; ++i) {
    const int index = threadIdx.x + i * kThreads;
    const int row = index / kPieces, piece = index % kPieces;
    const bool is_there = first + row < end && piece * kPiece < width;
    const bf16* const source =
        is_there ? from.data + (first + row) * from.row + piece * kPiece : from.data;
    copy_16(to + place_of<kWidth>(row, piece), source, is_there ? 16 : 0);
  }
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void store_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ float2 both_of(uint32_t word) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word));
}

// This warp's part of the state.
template <int kFeatures, int kValues>
struct State {
  using Of = Shape<kFeatures, kValues>;
  static constexpr int kBlocks = Of::kStateColumns / 8;

  float sums[kBlocks][4] = {};

  static __device__ int row() {  // of sums[..][0]; that of sums[..][2] is 8 later
    return threadIdx.x / 32 % Of::kStateRows * 16 + threadIdx.x % 32 / 4;
  }
  static __device__ int first_column() {
    return threadIdx.x / 32 / Of::kStateRows * Of::kStateColumns;
  }
  static __device__ int column(int block) {  // of sums[block][0]
    return first_column() + block * 8 + threadIdx.x % 4 * 2;
  }

  __device__ void load(const float* from, int features, int values) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int f = row() + half * 8, c = column(block);
        float2 both = {0, 0};
        if (f < features && c < values)
          both = *reinterpret_cast<const float2*>(from + f * values + c);
        sums[block][half * 2] = both.x;
        sums[block][half * 2 + 1] = both.y;
      }
  }

  __device__ void store(float* to, int features, int values) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int f = row() + half * 8, c = column(block);
        if (f < features && c < values)
          *reinterpret_cast<float2*>(to + f * values + c) =
              make_float2(sums[block][half * 2], sums[block][half * 2 + 1]);
      }
  }

  // To shared memory: what bfloat16 has of it, then what it has of the rest.
  __device__ void split_to(uint32_t to) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = sums[block][half * 2], y = sums[block][half * 2 + 1];
        const uint32_t high = packed(bf16{}, x, y);
        const float2 taken = both_of(high);
        const uint32_t place =
            to + place_of<kValues>(row() + half * 8, first_column() / 8 + block) +
            threadIdx.x % 4 * 4;
        store_word(place, high);
        store_word(place + Of::kStateBytes, packed(bf16{}, x - taken.x, y - taken.y));
      }
  }

  // Adds the products of keys and values.
  __device__ void add(uint32_t keys, uint32_t values) {
    const int lane = threadIdx.x % 32;
    const int group = threadIdx.x / 32 % Of::kStateRows;
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
      uint32_t left[4];
      load_transposed(left,
                      keys + place_of<kFeatures>(step * 16 + lane % 8 + lane / 16 * 8,
                                                 group * 2 + lane / 8 % 2));
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2) {
        uint32_t right[4];
        load_transposed(
            right, values + place_of<kValues>(step * 16 + lane % 16,
                                              first_column() / 8 + block + lane / 16));
        add_product(bf16{}, sums[block], left, right[0], right[1]);
        add_product(bf16{}, sums[block + 1], left, right[2], right[3]);
      }
    }
  }
};

// Sums of the rows of a tile, times weights. A thread has two columns of every
// kGroups-th row; neighbours have the other rows.
template <int kWidth, int kThreads>
struct RowSums {
  static constexpr int kGroups = kThreads / (kWidth / 2);

  float x = 0, y = 0;

  static __device__ int group() { return threadIdx.x % kGroups; }
  static __device__ int column() { return threadIdx.x / kGroups * 2; }

  __device__ void load(const float* from, int width) {
    if (group() != 0 || column() >= width) return;
    x = from[column()];
    y = from[column() + 1];
  }

  // Null weights: all are 1.
  __device__ void add(uint32_t tile, const float* weights) {
    const int c = column();
#pragma unroll
    for (int i = 0; i < kChunk / kGroups; ++i) {
      const int row = group() + i * kGroups;
      const float2 both =
          both_of(load_word(tile + place_of<kWidth>(row, c / kPiece) + c % kPiece * 2));
      const float weight = weights ? weights[row] : 1;
      x = fmaf(both.x, weight, x);
      y = fmaf(both.y, weight, y);
    }
  }

  // The sums of all rows, for every thread of the group.
  __device__ float2 all() const {
    float2 sum = {x, y};
#pragma unroll
    for (int lane = 1; lane < kGroups; lane *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, lane);
      sum.y += __shfl_xor_sync(~0u, sum.y, lane);
    }
    return sum;
  }

  __device__ void store(float* to, int width) const {
    const float2 sum = all();
    if (group() == 0 && column() < width)
      *reinterpret_cast<float2*>(to + column()) = sum;
  }
};

// What num is multiplied by.
__device__ __forceinline__ float factor_of(LinearDivisor divisor, float epsilon,
                                           float den) {
  switch (divisor) {
    case LinearDivisor::kNone: return 1;
    case LinearDivisor::kPlus: return 1 / (den + epsilon);
    case LinearDivisor::kAtLeast: return 1 / (den > epsilon ? den : epsilon);
    case LinearDivisor::kIfPositive: break;
  }
  return den <= 1e-30f ? 0 : 1 / den;
}

// Word i of lane l to lane i of the same four, as word l.
__device__ __forceinline__ void transpose_words(uint32_t (&words)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? words[i] : words[i + 2], 2);
    (high ? words[i] : words[i + 2]) = got;
  }
}

// One segment of one head.
struct Place {
  int64_t example, head, index, segment;  // index: of the head among all

  __device__ Place(const LinearPass& pass, int64_t segments)
      : example(blockIdx.x / segments / pass.heads),
        head(blockIdx.x / segments % pass.heads),
        index(blockIdx.x / segments),
        segment(blockIdx.x % segments) {}
};

__host__ __device__ constexpr int64_t parts_of(int64_t count, int64_t part) {
  return (count + part - 1) / part;
}

__device__ __forceinline__ int64_t state_size_of(const LinearPass& pass) {
  return pass.features * pass.values + (pass.divides ? pass.features : pass.values);
}

// The vector of one number a row, in shared memory; null where it is all 1.
struct Vector {
  const float* data = nullptr;
  int64_t row = 0;

  __device__ Vector(const Rows<const float>& rows, int64_t example, int64_t head)
      : data(rows.data ? head_of(rows, example, head) : nullptr), row(rows.row) {}

  __device__ void copy(float* to, int64_t first, int64_t end) const {
    if (!data || threadIdx.x >= kChunk) return;
    const int64_t i = first + threadIdx.x;
    to[threadIdx.x] = i < end ? data[i * row] : 0;
  }
};

template <int kFeatures, int kValues, bool kDivides>
__global__ void __launch_bounds__(Shape<kFeatures, kValues>::kThreads,
                                  Shape<kFeatures, kValues>::kBlocks)
    sum_segments(const LinearPass pass, int64_t segments) {
  using Of = Shape<kFeatures, kValues>;
  constexpr int kSumWidth = kDivides ? kFeatures : kValues;
  constexpr int kStage = Of::kKeyBytes + Of::kValueBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float b[kStages][kChunk];
  const Place place(pass, segments);
  const int64_t begin = place.segment * pass.segment;
  const int64_t end = min(pass.keys, begin + pass.segment);
  const int chunks = static_cast<int>(parts_of(end - begin, kChunk));
  const Head keys = head_of_rows(pass.k, place.example, place.head);
  const Head values = head_of_rows(pass.v, place.example, place.head);
  const Vector b_rows(pass.b, place.example, place.head);
  const uint32_t tiles = shared_address(shared);
  const auto copy = [&](int chunk) {
    const uint32_t stage = tiles + chunk % kStages * kStage;
    const int64_t first = begin + chunk * kChunk;
    copy_rows<kFeatures, Of::kThreads>(stage, keys, first, end, pass.features);
    copy_rows<kValues, Of::kThreads>(stage + Of::kKeyBytes, values, first, end,
                                     pass.values);
    if (!kDivides) b_rows.copy(b[chunk % kStages], first, end);
    close_copies();
  };
  State<kFeatures, kValues> state;
  RowSums<kSumWidth, Of::kThreads> row_sums;
  copy(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies();
    __syncthreads();  // the chunk is there, and nobody reads the other stage any more
    if (chunk + 1 < chunks) copy(chunk + 1);
    const uint32_t key_tile = tiles + chunk % kStages * kStage;
    const uint32_t value_tile = key_tile + Of::kKeyBytes;
    state.add(key_tile, value_tile);
    row_sums.add(kDivides ? key_tile : value_tile,
                 kDivides || !pass.b.data ? nullptr : b[chunk % kStages]);
  }
  float* const to =
      pass.states + (place.index * parts_of(pass.keys, pass.segment) + place.segment) *
                        state_size_of(pass);
  state.store(to, pass.features, pass.values);
  row_sums.store(to + pass.features * pass.values,
                 kDivides ? pass.features : pass.values);
}

template <int kFeatures, int kValues, bool kCausal>
constexpr int kRowStage = Shape<kFeatures, kValues>::kQueryBytes +
                          (kCausal ? Shape<kFeatures, kValues>::kKeyBytes +
                                         Shape<kFeatures, kValues>::kValueBytes
                                   : 0);

template <int kFeatures, int kValues, bool kCausal>
constexpr int kRowBytes = kStages* kRowStage<kFeatures, kValues, kCausal> +
                          2 * Shape<kFeatures, kValues>::kStateBytes;

template <int kFeatures, int kValues, bool kCausal, bool kDivides>
__global__ void __launch_bounds__(Shape<kFeatures, kValues>::kThreads,
                                  Shape<kFeatures, kValues>::kBlocks)
    write_rows(const LinearPass pass, int64_t segments) {
  using Of = Shape<kFeatures, kValues>;
  constexpr int kSumWidth = kDivides ? kFeatures : kValues;
  constexpr int kStage = kRowStage<kFeatures, kValues, kCausal>;
  constexpr int kSteps = kFeatures / 16;
  constexpr int kBlocks = Of::kOutColumns / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float a[kStages][kChunk], b[kStages][kChunk], sums[kSumWidth];
  const Place place(pass, segments);
  const int64_t begin = place.segment * pass.segment;
  const int64_t end = min(pass.queries, begin + pass.segment);
  const int chunks = static_cast<int>(parts_of(end - begin, kChunk));
  const Head queries = head_of_rows(pass.q, place.example, place.head);
  const Head keys = head_of_rows(pass.k, place.example, place.head);
  const Head values = head_of_rows(pass.v, place.example, place.head);
  const Vector a_rows(pass.a, place.example, place.head);
  const Vector b_rows(pass.b, place.example, place.head);
  bf16* const out_rows = static_cast<bf16*>(pass.out.data) +
                         place.example * pass.out.example + place.head * pass.out.head;
  const uint32_t tiles = shared_address(shared);
  const uint32_t state_tile = tiles + kStages * kStage;
  const int lane = threadIdx.x % 32;
  const int row_group = threadIdx.x / 32 % Of::kOutRows;
  const int first_row = row_group * 16 + lane / 4;  // the other is 8 later
  const int first_column = threadIdx.x / 32 / Of::kOutRows * Of::kOutColumns;

  const auto copy = [&](int chunk) {
    const uint32_t stage = tiles + chunk % kStages * kStage;
    const int64_t first = begin + chunk * kChunk;
    copy_rows<kFeatures, Of::kThreads>(stage, queries, first, end, pass.features);
    if (!kDivides) a_rows.copy(a[chunk % kStages], first, end);
    if (kCausal) {
      copy_rows<kFeatures, Of::kThreads>(stage + Of::kQueryBytes, keys, first, end,
                                         pass.features);
      copy_rows<kValues, Of::kThreads>(stage + Of::kQueryBytes + Of::kKeyBytes, values,
                                       first, end, pass.values);
      if (!kDivides) b_rows.copy(b[chunk % kStages], first, end);
    }
    close_copies();
  };
  copy(0);

  const int64_t state_size = state_size_of(pass);
  const float* const from =
      kCausal ? pass.states + (place.index * segments + place.segment) * state_size
              : pass.last + place.index * state_size;
  State<kFeatures, kValues> state;
  RowSums<kSumWidth, Of::kThreads> row_sums;
  state.load(from, pass.features, pass.values);
  row_sums.load(from + pass.features * pass.values,
                kDivides ? pass.features : pass.values);

  if (!kCausal) {
    state.split_to(state_tile);
    row_sums.store(sums, kSumWidth);
  }

  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages;
    const uint32_t query_tile = tiles + stage * kStage;
    const uint32_t key_tile = query_tile + Of::kQueryBytes;
    const uint32_t value_tile = key_tile + Of::kKeyBytes;
    wait_for_copies();
    __syncthreads();  // the chunk is there, and nobody reads the old state any more
    if (chunk + 1 < chunks) copy(chunk + 1);
    if (kCausal) {
      state.split_to(state_tile);
      row_sums.store(sums, kSumWidth);
      __syncthreads();
    }

    uint32_t query[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      load_matrices(query[step],
                    query_tile + place_of<kFeatures>(row_group * 16 + lane % 16,
                                                     step * 2 + lane / 16));
    float out[kBlocks][4] = {}, den[2] = {0, 0}, of_row[2] = {1, 1};
    if (!kDivides && pass.a.data)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        of_row[half] = a[stage][first_row + half * 8];
    if (kCausal) {
      for (int group = 0; group <= row_group; ++group) {  // of 16 keys
        float pairs[2][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t right[4];
          load_matrices(right, key_tile + place_of<kFeatures>(
                                              group * 16 + lane % 8 + lane / 16 * 8,
                                              step * 2 + lane / 8 % 2));
          add_product(bf16{}, pairs[0], query[step], right[0], right[1]);
          add_product(bf16{}, pairs[1], query[step], right[2], right[3]);
        }
#pragma unroll
        for (int block = 0; block < 2; ++block)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = group * 16 + block * 8 + lane % 4 * 2 + i % 2;
            if (!kDivides && pass.has_pair)
              pairs[block][i] += of_row[i / 2] * (pass.b.data ? b[stage][key] : 1);
            if (key > first_row + i / 2 * 8) pairs[block][i] = 0;
            if (kDivides) den[i / 2] += pairs[block][i];
          }
        const uint32_t left[4] = {packed(bf16{}, pairs[0][0], pairs[0][1]),
                                  packed(bf16{}, pairs[0][2], pairs[0][3]),
                                  packed(bf16{}, pairs[1][0], pairs[1][1]),
                                  packed(bf16{}, pairs[1][2], pairs[1][3])};
#pragma unroll
        for (int block = 0; block < kBlocks; block += 2) {
          uint32_t right[4];
          load_transposed(right, value_tile + place_of<kValues>(group * 16 + lane % 16,
                                                                first_column / 8 +
                                                                    block + lane / 16));
          add_product(bf16{}, out[block], left, right[0], right[1]);
          add_product(bf16{}, out[block + 1], left, right[2], right[3]);
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (kDivides) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 q = both_of(query[step][i]);
          const float2 z = *reinterpret_cast<const float2*>(sums + step * 16 +
                                                            i / 2 * 8 + lane % 4 * 2);
          den[i % 2] += q.x * z.x + q.y * z.y;
        }
      }
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          uint32_t right[4];
          load_transposed(right,
                          state_tile + part * Of::kStateBytes +
                              place_of<kValues>(step * 16 + lane % 16,
                                                first_column / 8 + block + lane / 16));
          add_product(bf16{}, out[block], query[step], right[0], right[1]);
          add_product(bf16{}, out[block + 1], query[step], right[2], right[3]);
        }
    }
    if (!kDivides && pass.has_pair)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float2 sum = *reinterpret_cast<const float2*>(sums + first_column +
                                                            block * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          out[block][i] += of_row[i / 2] * (i % 2 ? sum.y : sum.x);
      }
    if (kCausal && (chunk + 1 < chunks || (pass.last && end == pass.queries))) {
      state.add(key_tile, value_tile);
      row_sums.add(kDivides ? key_tile : value_tile,
                   kDivides || !pass.b.data ? nullptr : b[stage]);
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query_row = begin + chunk * kChunk + first_row + half * 8;
      const int64_t row = place.index * pass.queries + query_row;
      const bool is_there = query_row < end;
      float factor = 1;
      if (kDivides) {
        const float all = sum_of_row(den[half]);
        factor = factor_of(pass.divisor, static_cast<float>(pass.epsilon), all);
        if (is_there && lane % 4 == 0 && first_column == 0) {
          if (pass.lse) pass.lse[row] = all <= 0 ? -infinity<float>() : logf(all);
          if (pass.den) pass.den[row] = all;
        }
      }
      // Four lanes have a row, and write four blocks of 8 numbers at once.
#pragma unroll
      for (int block = 0; block < kBlocks; block += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = packed(bf16{}, out[block + i][half * 2] * factor,
                            out[block + i][half * 2 + 1] * factor);
        transpose_words(words);
        const int column = first_column + (block + lane % 4) * 8;
        if (is_there && column < pass.values)
          *reinterpret_cast<uint4*>(out_rows + query_row * pass.out.row + column) =
              make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
  if (!kCausal || !pass.last || end != pass.queries) return;
  float* const to = pass.last + place.index * state_size;
  state.store(to, pass.features, pass.values);
  row_sums.store(to + pass.features * pass.values,
                 kDivides ? pass.features : pass.values);
}

// A warp has a row.
__global__ void __launch_bounds__(256) write_slope_rows(const LinearSlopeRows task) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= task.rows) return;
  const int64_t first = row * task.values;
  const auto* const out = static_cast<const bf16*>(task.out) + first;
  const auto* const out_slope = static_cast<const bf16*>(task.out_slope) + first;
  auto* const num_slope = static_cast<bf16*>(task.num_slope) + first;
  const float den = task.den[row], epsilon = static_cast<float>(task.epsilon);
  const float factor = factor_of(task.divisor, epsilon, den);
  float together = 0;  // of the slope as it was rounded: what cancels still does
  for (int c = lane * 2; c < task.values; c += 64) {
    const float2 slope = both_of(*reinterpret_cast<const uint32_t*>(out_slope + c));
    const float2 value = both_of(*reinterpret_cast<const uint32_t*>(out + c));
    const uint32_t rounded = packed(bf16{}, slope.x * factor, slope.y * factor);
    *reinterpret_cast<uint32_t*>(num_slope + c) = rounded;
    const float2 kept = both_of(rounded);
    together += kept.x * value.x + kept.y * value.y;
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2)
    together += __shfl_xor_sync(~0u, together, other);
  if (lane != 0) return;
  const bool is_over_den = task.divisor == LinearDivisor::kAtLeast
                               ? den > epsilon
                               : task.divisor != LinearDivisor::kNone;
  float slope = is_over_den ? -together : 0;
  if (task.lse_slope && den > 0) slope += task.lse_slope[row] / den;
  task.den_slope[row] = slope;
}

template <int kWidth>
struct Width {
  static constexpr int value = kWidth;
};

// launch(Width, Width) for the widths that tiles have.
template <class Launch>
int with_widths(const LinearPass& task, const Launch& launch) {
  const auto of_features = [&](auto values) {
    return task.features <= 64 ? launch(Width<64>(), values)
                               : launch(Width<128>(), values);
  };
  return task.values <= 64 ? of_features(Width<64>()) : of_features(Width<128>());
}

template <class Kernel>
int start(Kernel kernel, int64_t blocks, int threads, int bytes, Stream stream,
          const LinearPass& task, int64_t segments) {
  if (blocks == 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream>>>(task, segments);
  return cudaGetLastError();
}

}  // namespace

bool linear_pass_fits(int device, int features, int values) {
  constexpr int kStatic = 2048;  // bytes at most of what has a fixed size
  int most = 0;
  if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
      cudaSuccess)
    return false;
  const int bytes =
      features <= 64
          ? (values <= 64 ? kRowBytes<64, 64, true> : kRowBytes<64, 128, true>)
          : (values <= 64 ? kRowBytes<128, 64, true> : kRowBytes<128, 128, true>);
  return bytes + kStatic <= most;
}

int linear_sums(const LinearPass& task, Stream stream) {
  const int64_t segments = parts_of(task.keys, task.segment) - (task.causal ? 1 : 0);
  return with_widths(task, [&](auto features, auto values) {
    using Of = Shape<features.value, values.value>;
    const auto kernel = task.divides
                            ? sum_segments<features.value, values.value, true>
                            : sum_segments<features.value, values.value, false>;
    return start(kernel, task.examples * task.heads * segments, Of::kThreads,
                 kStages * (Of::kKeyBytes + Of::kValueBytes), stream, task, segments);
  });
}

int linear_rows(const LinearPass& task, Stream stream) {
  const int64_t segments = parts_of(task.queries, task.segment);
  return with_widths(task, [&](auto features, auto values) {
    constexpr int kFeatures = features.value, kValues = values.value;
    const auto begin = [&](auto kernel, int bytes) {
      return start(kernel, task.examples * task.heads * segments,
                   Shape<kFeatures, kValues>::kThreads, bytes, stream, task, segments);
    };
    if (task.causal)
      return begin(task.divides ? write_rows<kFeatures, kValues, true, true>
                                : write_rows<kFeatures, kValues, true, false>,
                   kRowBytes<kFeatures, kValues, true>);
    return begin(task.divides ? write_rows<kFeatures, kValues, false, true>
                              : write_rows<kFeatures, kValues, false, false>,
                 kRowBytes<kFeatures, kValues, false>);
  });
}

int linear_slope_rows(const LinearSlopeRows& task, Stream stream) {
  if (task.rows == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  const auto blocks = static_cast<unsigned>(parts_of(task.rows, kThreads / 32));
  write_slope_rows<<<blocks, kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace longspan::cuda
