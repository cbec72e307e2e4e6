// What the kernels of Hopper share: how they find their work, bring tiles to shared
// memory and put results back.

#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <type_traits>

#include "longspan/kernels/cuda/hopper.h"
#include "longspan/kernels/cuda/hopper_ptx.cuh"
#include "longspan/kernels/cuda/hopper_wgmma.cuh"
#include "longspan/kernels/cuda/int_divisor.cuh"

namespace longspan::cuda::hopper {

// kRows: tiles as they lie. kIntervals: and from <= position < to. kGathered: rows by
// place, and intervals.
enum class Mode { kRows, kIntervals, kGathered };

// Of one operand, where several of the call's heads or examples may share one.
struct Spot {
  uint32_t both;  // the example in the high half; neither is above 65535

  __device__ __forceinline__ int head() const { return both & 0xffff; }
  __device__ __forceinline__ int example() const { return both >> 16; }
};

// Rows of numbers of two bytes, and how to find a head's. Strides count bytes.
struct Operand {
  char* data = nullptr;
  int64_t example = 0, head = 0, row = 0;
  IntDivisor by_example, by_head;
  int32_t examples_of_one = 1, heads_of_one = 1;  // that share one
  int32_t width = 0;

  __device__ __forceinline__ Spot spot(int e, int h) const {
    return {static_cast<uint32_t>(by_head(h) | by_example(e) << 16)};
  }
  __device__ __forceinline__ char* at(int e, int h) const {
    return data + by_example(e) * example + by_head(h) * head;
  }
};

struct Floats {
  float* data = nullptr;
  int64_t example = 0, head = 0, row = 0;

  __device__ float* at(int e, int h) const { return data + e * example + h * head; }
};

struct Numbers {
  const int32_t* data = nullptr;
  int64_t example = 0, head = 0, row = 1;

  // Of one head only.
  __device__ __forceinline__ Numbers at(int e, int h) const {
    return {data == nullptr ? nullptr : data + e * example + h * head, 0, 0, row};
  }
  __device__ __forceinline__ int of(int place) const {
    return data == nullptr ? place : __ldg(data + place * row);
  }

  // Row number `place`.
  __device__ int of(int e, int h, int place) const {
    return data == nullptr ? place : __ldg(data + e * example + h * head + place * row);
  }
};

// What all kernels of a step are told.
struct Work {
  HopperLists lists;
  HopperPlaces places;
  Numbers query_rows, key_rows;
  int32_t* counter;
  int32_t heads, all_heads;  // of an example, of all
  int32_t heads_at_once;     // whose tiles stay in the L2 cache together
  IntDivisor by_heads, by_round, by_heads_at_once, by_last_heads;
  int32_t items;
  int32_t queries, keys;  // places
  int32_t padded_queries, padded_keys;
  int32_t first;  // position of query 0
};

// What consumers do with a tile, four bits for each group.
constexpr int kMasked = 1, kChecked = 2, kLast = 4, kSkipped = 8;

// What the slot of an item in shared memory holds.
constexpr int kSlotHead = 0, kSlotTiles = 4, kSlotPart = 16, kSlotLeft = 20,
              kSlotExample = 24, kSlotInner = 28, kSlotBytes = 32;

template <int kGroups>
constexpr int kThreads = kGroups == 1 ? 160 : (kGroups + 1) * 128;

// Registers of the threads that compute and of those that copy, which have more to do
// where there are intervals, and most where they gather.
template <int kGroups, Mode kMode, bool kShortTiles>
struct Registers {
  static constexpr bool kGathered = kMode == Mode::kGathered,
                        kLess = kShortTiles && kMode == Mode::kIntervals;
  static constexpr int kCompute =
      kGroups == 2 ? (kGathered ? 200 : 232) : (kLess ? 152 : 160);
  static constexpr int kCopy =
      kGroups == 2 ? (kGathered ? 104 : 40) : (kLess ? 56 : 32);
};
struct ManyRegisters {  // to compute, where rows are gathered all the same
  static constexpr int kCompute = 224, kCopy = 56;
};

#ifdef LONGSPAN_ON_HOPPER

struct Item {
  int number, example, head;
  int tiles[3];
  int first, end, part;
};

// False where the head has no such piece.
__device__ __forceinline__ bool find(const Work& work, int number, Item& item) {
  const int all = work.lists.piece_count * work.heads_at_once;
  const int round = work.by_round(number), rest = number - round * all;
  const int before = round * work.heads_at_once;
  const int together = min(work.heads_at_once, work.all_heads - before);
  const int piece = together == work.heads_at_once ? work.by_heads_at_once(rest)
                                                   : work.by_last_heads(rest);
  item.number = before + rest - piece * together;
  item.example = work.by_heads(item.number);
  item.head = item.number - item.example * work.heads;
  const int pattern =
      __ldg(work.lists.pattern +
            (work.lists.examples == 1 ? 0 : item.example * work.lists.heads) +
            (work.lists.heads == 1 ? 0 : item.head));
  const int4* const found = reinterpret_cast<const int4*>(
      work.lists.pieces + pattern * work.lists.piece_count + piece);
  const int4 tiles = __ldg(found), rest_of_it = __ldg(found + 1);
  item.tiles[0] = tiles.x;
  item.tiles[1] = tiles.y;
  item.tiles[2] = tiles.z;
  item.first = tiles.w;
  item.end = rest_of_it.x;
  item.part = rest_of_it.y;
  return item.first >= 0;
}

// left: how many entries there are; in other modes than kRows whether there are any.
__device__ __forceinline__ void tell(uint32_t slot, const Item& item, int left) {
  store_int(slot + kSlotHead, item.number);
#pragma unroll
  for (int group = 0; group < 3; ++group)
    store_int(slot + kSlotTiles + group * 4, item.tiles[group]);
  store_int(slot + kSlotPart, item.part);
  store_int(slot + kSlotLeft, left);
  store_int(slot + kSlotExample, item.example);
  store_int(slot + kSlotInner, item.head);
}

// Where a head's numbers by place begin, in places.
__device__ __forceinline__ size_t key_places(const Work& work, const Item& item) {
  const HopperPlaces& places = work.places;
  return (static_cast<size_t>(places.key_examples == 1 ? 0 : item.example) *
              places.key_heads +
          (places.key_heads == 1 ? 0 : item.head)) *
         work.padded_keys;
}
__device__ __forceinline__ size_t query_places(const Work& work, int example,
                                               int head) {
  const HopperPlaces& places = work.places;
  return (static_cast<size_t>(places.query_examples == 1 ? 0 : example) *
              places.query_heads +
          (places.query_heads == 1 ? 0 : head)) *
         work.padded_queries;
}

// The least and the most of a tile's positions.
template <Mode kMode>
__device__ __forceinline__ int2 positions_of(const Work& work, const Item& item,
                                             int tile) {
  if constexpr (kMode == Mode::kGathered)
    return __ldg(reinterpret_cast<const int2*>(work.places.query_bounds) +
                 query_places(work, item.example, item.head) / 64 + tile);
  const int first = work.first + tile * 64;
  return {first, first + 63};
}
// The least and the most `from`, and of `to`, of a tile.
__device__ __forceinline__ int4 ends_of(const Work& work, const Item& item, int tile) {
  return __ldg(reinterpret_cast<const int4*>(work.places.key_bounds) +
               key_places(work, item) / 64 + tile);
}

// 0 where all is seen.
__device__ __forceinline__ int compare(int2 positions, int4 ends) {
  if (ends.x > positions.y || ends.w <= positions.x) return kSkipped;
  return ends.y <= positions.x && positions.y < ends.z ? 0 : kChecked;
}

// What the groups do with an entry, four bits each.
template <Mode kMode, int kGroups, int kTiles, bool kInTurn, bool kByKey>
__device__ __forceinline__ int judge(const Work& work, const Item& item, int4 entry) {
  const int tags[3] = {entry.y, entry.z, entry.w};
  int result = 0, skipped = 0;
  int2 positions = {INT_MAX, INT_MIN};
  int4 ends = {INT_MAX, INT_MIN, INT_MAX, INT_MIN};
  if constexpr (kMode != Mode::kRows) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if constexpr (kByKey) {
        const int2 more = positions_of<kMode>(work, item, entry.x * kTiles + i);
        positions = {min(positions.x, more.x), max(positions.y, more.y)};
      } else {
        const int4 more = ends_of(work, item, entry.x * kTiles + i);
        ends = {min(ends.x, more.x), max(ends.y, more.y), min(ends.z, more.z),
                max(ends.w, more.w)};
      }
    }
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    int state = tags[group] == HopperEntry::kNone ? kSkipped
                : tags[group] >= 0                ? kMasked
                                                  : 0;
    if constexpr (kMode != Mode::kRows) {
      const int tile = max(item.tiles[group], 0);
      if constexpr (kByKey)
        ends = ends_of(work, item, tile);
      else
        positions = positions_of<kMode>(work, item, tile);
      state |= compare(positions, ends);
    }
    skipped += (state & kSkipped) != 0;
    if (state & kSkipped) state = kInTurn ? (state & kMasked) | kChecked : kSkipped;
    result |= state << (group * 4);
  }
  if (kInTurn && skipped == kGroups) result = kSkipped * 0x111;
  return result;
}
template <int kGroups>
__device__ __forceinline__ bool is_seen(int states) {
  constexpr int kNobody = kGroups == 1   ? kSkipped
                          : kGroups == 2 ? kSkipped * 0x11
                                         : kSkipped * 0x111;
  return (states & kNobody) != kNobody;
}

__device__ __forceinline__ int4 entry_at(const Work& work, int entry) {
  return __ldg(reinterpret_cast<const int4*>(work.lists.entries) + entry);
}

// What is known of an entry before its turn: in mode kRows what it holds, where there
// are registers for it (for a load nothing waits before it is used), in others its
// state, and where rows are gathered both.
template <Mode kMode, int kGroups>
struct Seen {
  int entry;
  int state;

  __device__ __forceinline__ int4 held(const Work& work) const {
    return entry_at(work, entry);
  }
};
template <>
struct Seen<Mode::kRows, 3> {
  int entry;

  __device__ __forceinline__ int4 held(const Work& work) const {
    return entry_at(work, entry);
  }
};
template <int kGroups>
requires(kGroups < 3) struct Seen<Mode::kRows, kGroups> {
  int entry;
  int4 holds;

  __device__ __forceinline__ int4 held(const Work&) const { return holds; }
};
template <int kGroups>
struct Seen<Mode::kGathered, kGroups> {
  int entry;
  int state;
  int4 holds;

  __device__ __forceinline__ int4 held(const Work&) const { return holds; }
};

// The next entry from `entry` on that some query sees.
template <Mode kMode, int kGroups, int kTiles, bool kInTurn, bool kByKey>
__device__ __forceinline__ Seen<kMode, kGroups> seek(const Work& work, const Item& item,
                                                     int entry) {
  Seen<kMode, kGroups> seen = {};
  seen.entry = entry;
  if constexpr (kMode == Mode::kRows) {
    if constexpr (kGroups < 3)
      if (entry < item.end) seen.holds = entry_at(work, entry);
  } else {
    for (; seen.entry < item.end; ++seen.entry) {
      const int4 holds = entry_at(work, seen.entry);
      if constexpr (kMode == Mode::kGathered) seen.holds = holds;
      seen.state = judge<kMode, kGroups, kTiles, kInTurn, kByKey>(work, item, holds);
      if (is_seen<kGroups>(seen.state)) break;
    }
  }
  return seen;
}
template <Mode kMode, int kGroups, int kTiles, bool kInTurn, bool kByKey>
__device__ __forceinline__ int state_of(const Work& work, const Item& item,
                                        const Seen<kMode, kGroups>& seen, int4 held) {
  if constexpr (kMode == Mode::kRows)
    return judge<kMode, kGroups, kTiles, kInTurn, kByKey>(work, item, held);
  else
    return seen.state;
}

// Whether a state's bit is set, as a value that is the same in all lanes.
__device__ __forceinline__ bool has(int state, int bit) {
  return __any_sync(kAllLanes, (state & bit) != 0);
}

// Byte of 16-byte chunk `chunk` of a row, in panels of 64 columns and kRows rows.
template <int kRows>
__device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
  return (chunk >> 3) * kRows * 128 + row * 128 + (((chunk ^ row) & 7) << 4);
}

// Rows by number: each of kCopiers threads has a chunk of every so many rows.
template <int kWidth, int kCopiers>
struct Gather {
  static constexpr int kChunks = kWidth / 8, kAtOnce = kCopiers / kChunks,
                       kCount = 64 / kAtOnce;
  int rows[kCount];

  // Those of the 64 places from `first` on; none beyond `end`.
  __device__ __forceinline__ void find(const Numbers& of_head, int first, int end,
                                       int thread) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int place = first + thread / kChunks + i * kAtOnce;
      rows[i] = place < end ? of_head.of(place) : -1;
    }
  }
  // To row `row` on, a multiple of 8, of panels of kPanel rows. `data` is the head's.
  template <int kPanel>
  __device__ __forceinline__ void copy(uint32_t to, int row, const char* data,
                                       int64_t row_bytes, int width, int thread) const {
    static_assert(kAtOnce % 8 == 0);  // so that the swizzle is the same for all rows
    const int chunk = thread % kChunks;
    const bool inside = chunk * 8 < width;
    const int bytes = inside ? 16 : 0;
    // As hopper_gathers() has it; so one instruction multiplies and adds.
    const auto step = static_cast<uint32_t>(row_bytes);
    to += chunk_at<kPanel>(row + thread / kChunks, chunk);
    if (inside) data += chunk * 16;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto from = static_cast<uint32_t>(max(rows[i], 0));
      copy16(to + i * kAtOnce * 128, data + static_cast<uint64_t>(from) * step,
             rows[i] < 0 ? 0 : bytes);
    }
  }
};

// kRows rows from `row` on, as TMA brings them; boxes have kBox rows.
template <int kWidth, int kRows>
__device__ __forceinline__ void copy_rows(uint32_t to, const CUtensorMap* map, int row,
                                          Spot spot, uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < kWidth / 64; ++panel)
    copy_box(to + panel * kRows * 128, map, panel * 64, row, spot.head(),
             spot.example(), barrier);
}

// Sets scores to minus infinity where the mask in shared memory, 64 rows of kWords
// words, has no bit.
template <int kWords>
__device__ __forceinline__ void hide(float (&scores)[kWords * 8][4], uint32_t mask) {
  const int thread = thread_again(), lane = thread & 31;
  mask += (((thread >> 5) & 3) * 16 + (lane >> 2)) * kWords * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const uint64_t bits =
          load_word(mask + (half * 8 * kWords + word) * 8) >> ((lane & 3) * 2);
      const uint32_t low = static_cast<uint32_t>(bits),
                     high = static_cast<uint32_t>(bits >> 32);
#pragma unroll
      for (int column = 0; column < 8; ++column) {
        const uint32_t some = column < 4 ? low : high;
        float* const two = &scores[word * 8 + column][half * 2];
        if (!(some & (1u << (column % 4 * 8)))) two[0] = -INFINITY;
        if (!(some & (2u << (column % 4 * 8)))) two[1] = -INFINITY;
      }
    }
}

// Sets scores of queries (rows) at two positions to minus infinity where from <=
// position < to is not so. `ends`: kCount * 8 numbers `from`, then as many `to`.
template <int kCount>
__device__ __forceinline__ void check(float (&scores)[kCount][4], int2 positions,
                                      uint32_t ends) {
  ends += (thread_again() & 3) * 8;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int2 from = load_int2(ends + i * 32),
               to = load_int2(ends + kCount * 32 + i * 32);
    if (positions.x < from.x || positions.x >= to.x) scores[i][0] = -INFINITY;
    if (positions.x < from.y || positions.x >= to.y) scores[i][1] = -INFINITY;
    if (positions.y < from.x || positions.y >= to.x) scores[i][2] = -INFINITY;
    if (positions.y < from.y || positions.y >= to.y) scores[i][3] = -INFINITY;
  }
}

// Accumulators as they are, for the merge.
template <int kCount>
__device__ __forceinline__ void put_part(float* parts, size_t part,
                                         const float (&sums)[kCount][4]) {
  float4* const to =
      reinterpret_cast<float4*>(parts) + part * kCount * 128 + (thread_again() & 127);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    to[i * 128] = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
}

// The results of a warpgroup: each warp lays its 16 rows out in shared memory, where
// they have room, and stores 16 bytes a lane. `to` is the head's; rows[] says where a
// row goes, and -1 that it is left out.
template <class Number, int kPanel, int kCount, class RowOf>
__device__ __forceinline__ void put(uint32_t room, const float (&sums)[kCount][4],
                                    float low_factor, float high_factor, char* to,
                                    int64_t row_bytes, int width, const RowOf& row_of) {
  const int thread = thread_again(), lane = thread & 31, warp = (thread >> 5) & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = half == 0 ? low_factor : high_factor;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      store_int(
          room + chunk_at<kPanel>(warp * 16 + (lane >> 2) + half * 8, i) +
              (lane & 3) * 4,
          pack<Number>(sums[i][half * 2] * factor, sums[i][half * 2 + 1] * factor));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * kCount / 32; ++i) {
    const int at = lane + i * 32, inner = warp * 16 + at / kCount, chunk = at % kCount;
    const uint4 value = load16(room + chunk_at<kPanel>(inner, chunk));
    const int row = row_of(inner);
    if (row >= 0 && chunk * 8 < width)
      *reinterpret_cast<uint4*>(to + row * row_bytes + chunk * 16) = value;
  }
}

// The number of the next item, which is asked for as early as the item before begins.
// Those who gather are kCopiers threads, of which the first asks, and pass it on
// through shared memory, two places in turn.
__device__ __forceinline__ int next_item(const Work& work) {
  return atomicAdd(work.counter, 1) + static_cast<int>(gridDim.x);
}
template <int kCopiers>
__device__ __forceinline__ int pass_on(int number, uint32_t places, int turn,
                                       int thread) {
  const uint32_t place = places + (turn & 1) * 4;
  if (thread == 0) store_int(place, number);
  named_sync(7, kCopiers);
  return load_int(place);
}

#endif  // LONGSPAN_ON_HOPPER

// ---- On the host

inline Operand operand(const void* data, int64_t example, int64_t head, int64_t row,
                       int32_t group, int64_t width) {
  Operand result;
  result.data = static_cast<char*>(const_cast<void*>(data));
  result.example = example * 2;
  result.head = head * 2;
  result.row = row * 2;
  result.examples_of_one = example == 0 ? INT_MAX : 1;
  result.heads_of_one = head == 0 ? INT_MAX : group;
  result.by_example = IntDivisor::of(result.examples_of_one);
  result.by_head = IntDivisor::of(result.heads_of_one);
  result.width = static_cast<int32_t>(width);
  return result;
}
template <class Number>
Operand operand(const Rows<Number>& rows, int64_t width) {
  return operand(rows.data, rows.example, rows.head, rows.row, rows.group, width);
}
template <class Number>
Floats floats(const Rows<Number>& rows) {
  return {static_cast<float*>(const_cast<void*>(static_cast<const void*>(rows.data))),
          rows.example, rows.head, rows.row};
}
inline Numbers numbers(const Ints& rows) {
  return {rows.data, rows.example, rows.head, rows.row};
}

inline bool is_gathered(const HopperAttention& given) {
  return given.query_rows.data != nullptr || given.key_rows.data != nullptr;
}
// Whether the lists and the arrays by place are those that the call needs.
inline bool is_complete(const HopperAttention& given, const HopperLists& lists) {
  const HopperPlaces& places = given.places;
  const bool gathered = is_gathered(given);
  return (lists.kernel == HopperKernel::kGathered) == gathered &&
         (!gathered || (places.from != nullptr && places.positions != nullptr)) &&
         ((given.from.data == nullptr && given.to.data == nullptr) ||
          places.from != nullptr);
}
inline bool is_wide(const HopperAttention& given) {
  return given.width > 64 || given.value_width > 64;
}

// Boxes of 64 columns and `box` rows in the 128-byte swizzle, zeros beyond the ends.
inline int make_map(CUtensorMap* map, Type type, const Operand& of, int64_t rows,
                    int64_t heads, int64_t examples, int box) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found)
               : nullptr;
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const int64_t maps_heads = of.heads_of_one == INT_MAX ? 1 : heads / of.heads_of_one;
  const int64_t maps_examples = of.examples_of_one == INT_MAX ? 1 : examples;
  // Strides of one step only do not matter, but must be valid.
  const auto stride = [](int64_t bytes, int64_t count) {
    return static_cast<cuuint64_t>(count > 1 ? bytes : 256);
  };
  const cuuint64_t extents[4] = {
      static_cast<cuuint64_t>(of.width), static_cast<cuuint64_t>(rows),
      static_cast<cuuint64_t>(maps_heads), static_cast<cuuint64_t>(maps_examples)};
  const cuuint64_t strides[3] = {stride(of.row, rows), stride(of.head, maps_heads),
                                 stride(of.example, maps_examples)};
  const cuuint32_t box_extents[4] = {64, static_cast<cuuint32_t>(box), 1, 1},
                   steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(map,
             type == Type::kHalf ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             4, of.data, extents, strides, box_extents, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// `bytes` of a head are read by many pieces of it.
inline Work work_of(const HopperAttention& given, const HopperLists& lists,
                    int32_t* counter, int64_t bytes) {
  constexpr int64_t kCache = 30'000'000;
  Work work = {};
  work.lists = lists;
  work.places = given.places;
  work.query_rows = numbers(given.query_rows);
  work.key_rows = numbers(given.key_rows);
  work.counter = counter;
  work.heads = static_cast<int32_t>(given.heads);
  work.all_heads = static_cast<int32_t>(given.examples * given.heads);
  const auto most_heads = static_cast<int32_t>(std::clamp<int64_t>(
      lists.is_even ? 1 : kCache / std::max<int64_t>(bytes, 1), 1, work.all_heads));
  // As many in the last round as in the others: few would end in few long pieces.
  const int32_t rounds = (work.all_heads + most_heads - 1) / most_heads;
  work.heads_at_once = (work.all_heads + rounds - 1) / rounds;
  work.items = work.all_heads * lists.piece_count;
  const int32_t last_heads = work.all_heads % work.heads_at_once;
  work.by_heads = IntDivisor::of(work.heads);
  work.by_round = IntDivisor::of(
      std::max<int64_t>(int64_t{lists.piece_count} * work.heads_at_once, 1));
  work.by_heads_at_once = IntDivisor::of(work.heads_at_once);
  work.by_last_heads = IntDivisor::of(std::max(last_heads, 1));
  work.queries = static_cast<int32_t>(given.query_places);
  work.keys = static_cast<int32_t>(given.key_places);
  work.padded_queries = static_cast<int32_t>(hopper_padded(given.query_places));
  work.padded_keys = static_cast<int32_t>(hopper_padded(given.key_places));
  work.first = given.first;
  return work;
}

// Launches as many blocks as run at once.
template <class... Parameters, class... Given>
int launch(void (*kernel)(Parameters...), int items, int at_once, int threads,
           int shared_bytes, Stream stream, const Given&... given) {
  if (const cudaError_t error = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      error != cudaSuccess)
    return error;
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int blocks = std::min(items, multiprocessors * at_once);
  kernel<<<blocks, threads, shared_bytes, stream>>>(given...);
  return cudaGetLastError();
}

}  // namespace longspan::cuda::hopper
