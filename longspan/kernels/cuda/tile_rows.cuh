// What a block of threads knows of the queries and keys of its head, and of those of
// the tile it works on, in shared memory.

#pragma once

#include "longspan/kernels/cuda/int_divisor.cuh"
#include "longspan/kernels/cuda/tile_lists.cuh"
#include "longspan/kernels/cuda/tile_product.cuh"

namespace longspan::cuda {
namespace {

// Where the head of an example begins; null where there is none.
template <class Number, class Any>
__device__ __forceinline__ Number* head_of(const Rows<Any>& rows, int32_t example,
                                           int32_t head) {
  if (!rows.data) return nullptr;
  return static_cast<Number*>(rows.data) + example * rows.example +
         head / rows.group * rows.head;
}

struct HeadInts {
  const int32_t* data;  // null: none
  int64_t stride;

  __device__ const int32_t* at(int32_t row) const { return data + row * stride; }
};

inline __device__ HeadInts head_ints(const Ints& ints, int32_t example, int32_t head) {
  return {head_of<const int32_t>(ints, example, head), ints.row};
}

template <class Stored>
struct HeadQueries {
  const Stored* q;
  int32_t stride;
  int32_t places;
  HeadInts rows, positions, buckets;
  int32_t first;
  // Of the backward pass, by row.
  const NumberOf<Stored>* lse2;
  const NumberOf<Stored>* delta;
  int64_t lse2_stride, delta_stride;
};

template <class Stored>
struct HeadSource {
  using Number = NumberOf<Stored>;

  const Stored* k;
  const Stored* v;
  int32_t k_stride, v_stride;
  int32_t places;
  HeadInts rows, positions, from, to, buckets;
  bool outside, has_interval, has_buckets;
  // Biases; null: none.
  const Number* column;
  const Number* slope;
  const Number* table;
  const Number* vectors;
  const Number* dense;
  const int32_t* labels;
  int64_t vectors_stride, labels_stride, dense_stride;
  int32_t first, entry_rows, grid_width, first_column, entry_columns;
  IntDivisor by_grid_width;
  bool has_pair_bias;  // table, vectors or dense
  bool by_distance;    // table and vectors, on a line
};

template <class Stored>
__device__ HeadQueries<Stored> head_queries(const Attention& given, int32_t example,
                                            int32_t head,
                                            const Rows<const void>& lse2 = {},
                                            const Rows<const void>& delta = {}) {
  using Number = const NumberOf<Stored>;
  return {head_of<const Stored>(given.q, example, head),
          static_cast<int32_t>(given.q.row),
          static_cast<int32_t>(given.places),
          head_ints(given.rows, example, head),
          head_ints(given.positions, example, head),
          head_ints(given.buckets, example, head),
          given.first,
          head_of<Number>(lse2, example, head),
          head_of<Number>(delta, example, head),
          lse2.row,
          delta.row};
}

template <class Stored>
__device__ void open_source(HeadSource<Stored>& to, const Attention& given,
                            int32_t number, int32_t example, int32_t head,
                            bool with_features) {
  using Number = const NumberOf<Stored>;
  const Source& source = given.sources[number];
  to.k = head_of<const Stored>(source.k, example, head);
  to.v = head_of<const Stored>(source.v, example, head);
  to.k_stride = static_cast<int32_t>(source.k.row);
  to.v_stride = static_cast<int32_t>(source.v.row);
  to.places = static_cast<int32_t>(source.places);
  to.rows = head_ints(source.rows, example, head);
  if (!with_features) return;
  to.positions = head_ints(source.positions, example, head);
  to.from = head_ints(source.from, example, head);
  to.to = head_ints(source.to, example, head);
  to.buckets = head_ints(source.buckets, example, head);
  to.outside = source.outside;
  to.has_interval = source.from.data || source.to.data;
  to.has_buckets = source.buckets.data || given.buckets.data;
  const Bias& bias = source.bias;
  to.column = head_of<Number>(bias.column, example, head);
  to.slope = head_of<Number>(bias.slopes, example, head);
  to.table = head_of<Number>(bias.table, example, head);
  to.vectors = head_of<Number>(bias.vectors, example, head);
  to.dense = head_of<Number>(bias.dense, example, head);
  to.labels = head_of<const int32_t>(bias.labels, example, head);
  to.vectors_stride = bias.vectors.row;
  to.labels_stride = bias.labels.row;
  to.dense_stride = bias.dense.row;
  to.first = bias.first;
  to.entry_rows = bias.rows;
  to.grid_width = bias.grid_width;
  if (bias.grid_width > 0) to.by_grid_width = IntDivisor::of(bias.grid_width);
  to.first_column = bias.first_column;
  to.entry_columns = bias.columns;
  to.has_pair_bias = to.table || to.vectors || to.dense;
  to.by_distance = (to.table || to.vectors) && !to.labels && bias.grid_width == 0;
}

// 64 places of queries, or of keys; a row of -1 is empty, and the other numbers of an
// empty place mean nothing.
template <class Number>
struct TileQueries {
  Visit visit;       // by which the tile was come to
  uint32_t live[2];  // a bit for each place that is not empty
  alignas(16) int32_t row[kTile];
  alignas(16) int32_t position[kTile];
  alignas(16) int32_t bucket[kTile];
  // Of the backward pass; plus infinity and 0 where a place is empty.
  alignas(16) Number lse2[kTile];
  alignas(16) Number delta[kTile];
};

template <class Number>
struct TileKeys {
  Visit visit;
  uint32_t live[2];
  alignas(16) int32_t row[kTile];
  alignas(16) int32_t position[kTile];
  alignas(16) int32_t from[kTile];
  alignas(16) int32_t to[kTile];
  alignas(16) int32_t bucket[kTile];
  alignas(16) Number column[kTile];
};

template <class Tile>
__device__ __forceinline__ uint64_t live_places(const Tile& tile) {
  return static_cast<uint64_t>(tile.live[1]) << 32 | tile.live[0];
}

// The row of a place, -1 where there is none.
inline __device__ int32_t row_of_place(const HeadInts& rows, int32_t places,
                                       int32_t place) {
  if (place >= places) return -1;
  return rows.data ? *rows.at(place) : place;
}

// Both are called by the 64 threads of two warps, each for its own place. Copies are
// begun, not waited for.
template <bool kFeatures, class Stored, class Number>
__device__ __forceinline__ void put_keys(TileKeys<Number>& tile, const Visit& visit,
                                         int place, int32_t row,
                                         const HeadSource<Stored>& source) {
  if (place == 0) tile.visit = visit;
  if (visit.source < 0) return;
  tile.row[place] = row;
  const uint32_t live = __ballot_sync(~0u, row >= 0);
  if (place % 32 == 0) tile.live[place / 32] = live;
  if (!kFeatures || row < 0) return;
  const auto bring = [&](int32_t* to, const HeadInts& from, int32_t otherwise) {
    if (from.data)
      copy_one(to, from.at(row));
    else
      *to = otherwise;
  };
  bring(&tile.position[place], source.positions, row);
  if (source.has_interval) {
    bring(&tile.from[place], source.from, INT32_MIN);
    if (source.to.data) copy_one(&tile.to[place], source.to.at(row));
  }
  if (source.has_buckets) bring(&tile.bucket[place], source.buckets, 0);
  if (source.column) copy_one(&tile.column[place], source.column + row);
}

template <bool kFeatures, class Stored, class Number>
__device__ __forceinline__ void put_queries(TileQueries<Number>& tile,
                                            const Visit& visit, int place, int32_t row,
                                            const HeadQueries<Stored>& queries) {
  if (place == 0) tile.visit = visit;
  if (visit.source < 0) return;
  tile.row[place] = row;
  const uint32_t live = __ballot_sync(~0u, row >= 0);
  if (place % 32 == 0) tile.live[place / 32] = live;
  if (!kFeatures || row < 0) return;
  const auto bring = [&](int32_t* to, const HeadInts& from, int32_t otherwise) {
    if (from.data)
      copy_one(to, from.at(row));
    else
      *to = otherwise;
  };
  bring(&tile.position[place], queries.positions, queries.first + row);
  bring(&tile.bucket[place], queries.buckets, 0);
}

// Goes ahead of the work on tiles of keys: knows the next tile, and has asked for the
// rows of its places. For the first 64 threads of a block.
template <class Stored, bool kFeatures>
class KeyScout {
 public:
  __device__ KeyScout(const TileList<false>& list, const HeadSource<Stored>* sources)
      : list_(list), sources_(sources) {
    look();
  }

  template <class Number>
  __device__ __forceinline__ void put(TileKeys<Number>& tile) {
    put_keys<kFeatures>(tile, visit_, threadIdx.x, row_,
                        sources_[visit_.source < 0 ? 0 : visit_.source]);
    look();
  }

 private:
  __device__ __forceinline__ void look() {
    visit_ = list_.next();
    if (visit_.source < 0) return;
    const HeadSource<Stored>& source = sources_[visit_.source];
    row_ = row_of_place(source.rows, source.places,
                        visit_.tile * kTile + static_cast<int32_t>(threadIdx.x));
  }

  TileList<false> list_;
  const HeadSource<Stored>* sources_;
  Visit visit_;
  int32_t row_ = -1;
};

// The same for tiles of queries, with the results of the forward pass.
template <class Stored, bool kFeatures>
class QueryScout {
 public:
  using Number = NumberOf<Stored>;

  __device__ QueryScout(const TileList<true>& list, const HeadQueries<Stored>& queries)
      : list_(list), queries_(queries) {
    look();
  }

  __device__ __forceinline__ void put(TileQueries<Number>& tile) {
    const int place = threadIdx.x;
    put_queries<kFeatures>(tile, visit_, place, row_, queries_);
    if (visit_.source >= 0 && row_ >= 0) {
      copy_one(&tile.lse2[place], queries_.lse2 + row_ * queries_.lse2_stride);
      copy_one(&tile.delta[place], queries_.delta + row_ * queries_.delta_stride);
    } else if (visit_.source >= 0) {
      tile.lse2[place] = infinity<Number>();
      tile.delta[place] = 0;
    }
    look();
  }

 private:
  __device__ __forceinline__ void look() {
    visit_ = list_.next();
    if (visit_.source < 0) return;
    row_ = row_of_place(queries_.rows, queries_.places,
                        visit_.tile * kTile + static_cast<int32_t>(threadIdx.x));
  }

  TileList<true> list_;
  const HeadQueries<Stored>& queries_;
  Visit visit_;
  int32_t row_ = -1;
};

}  // namespace
}  // namespace longspan::cuda
