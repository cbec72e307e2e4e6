// What the CUDA kernels of block-sparse attention are given: pointers and sizes. No
// torch, and nothing of CUDA but the stream, so that every compiler can read it.

#pragma once

#include <cstdint>

using CUstream_st_pointer = struct CUstream_st*;  // cudaStream_t

namespace longspan::cuda {

using Stream = CUstream_st_pointer;

enum class Type { kDouble, kFloat, kHalf, kBFloat16 };

constexpr int kTile = 64;
constexpr int kMostSources = 8;

// [examples|1, heads|1, rows, numbers] whose last axis is dense, in device memory.
// Strides count numbers and are 0 where one serves all; `group` heads share one. Null:
// there is none.
template <class Number>
struct Rows {
  Number* data = nullptr;
  int64_t example = 0, head = 0, row = 0;
  int32_t group = 1;
};

using Ints = Rows<const int32_t>;  // one number a row, rows `row` apart

// Consecutive tiles that share a mask.
struct Run {
  int32_t first = 0;
  int32_t count = 0;
  int32_t mask = 0;  // -1: all pairs of the tile
};

// The layout of one source in device memory. Null runs: every tile of every row, all
// pairs.
struct Tiles {
  const Run* row_runs = nullptr;           // of tiles of keys
  const int32_t* row_starts = nullptr;     // [patterns, query tiles + 1], into row_runs
  const Run* column_runs = nullptr;        // of tiles of queries
  const int32_t* column_starts = nullptr;  // [patterns, key tiles + 1]
  // [masks, 64] words; set bits are pairs that are seen.
  const uint64_t* by_query = nullptr;  // word = query of the tile, bit = key
  const uint64_t* by_key = nullptr;    // word = key of the tile, bit = query
  const int32_t* pattern = nullptr;    // [examples|1, heads|1]
  int32_t examples = 1, heads = 1;     // extents of `pattern`
};

// Of the number that computes: double for double inputs, else float. See Bias in
// ../block_attention.h; what an offset of queries adds is in the table. An entry is a
// label, or the distance of two positions less `first`, cut to 0 .. rows - 1; on a grid
// row * columns + column.
struct Bias {
  Rows<const void> column = {};   // [B|1, H|1, 1, keys]
  Rows<const void> slopes = {};   // [1, H|1, 1, 1]
  Rows<const void> table = {};    // [1, H|1, 1, entries]
  Rows<const void> vectors = {};  // [1, H|1, entries, width]
  Ints labels = {};               // [B|1, H|1, queries, keys]
  Rows<const void> dense = {};    // [B|1, H|1, queries, keys]
  int32_t first = 0, rows = 1;
  int32_t grid_width = 0, first_column = 0, columns = 1;
};

struct Source {
  Rows<const void> k = {}, v = {};
  int64_t keys = 0;     // rows of k and v
  int64_t places = 0;   // keys by place
  Ints rows = {};       // row of a place, -1: empty; null: itself
  Ints positions = {};  // of rows; null: the row
  Ints from = {}, to = {};
  bool outside = false;
  Ints buckets = {};
  Bias bias = {};
  Tiles tiles = {};
};

// The words of four keys from 4 * c on are philox() at (c, row of q, example * heads +
// head, number of the source), see ../../base/random.h; words below `limit` drop the
// pair. A limit of 0: no dropout.
struct Dropout {
  uint64_t key = 0;
  uint32_t limit = 0;
  double factor = 1;  // of the weights that stay
};

// Tiles first .. end - 1 of the list of a tile of queries (tiles of the first source,
// of the second, ..), or of the list of a tile of keys. A list may end sooner. Long
// lists are cut into several pieces, whose results are merged in their order.
struct Piece {
  int32_t tile = 0;
  int32_t first = 0, end = 0;
  int32_t part = -1;  // where its result goes among the parts; -1: it is the result
};

// A tile that was cut: parts first .. first + count - 1 are its own.
struct Cut {
  int32_t tile = 0;
  int32_t first = 0, count = 0;
};

// Pieces in the order they should be begun, the same for every example and head.
struct Pieces {
  const Piece* pieces = nullptr;
  int32_t count = 0;
  const Cut* cuts = nullptr;
  int32_t cut_count = 0;
  int32_t parts = 0;  // of one head
};

struct Attention {
  Type type = Type::kFloat;  // of q, k, v, out and their gradients
  int64_t examples = 0, heads = 0, queries = 0, width = 0, value_width = 0;
  double scale = 1;
  Rows<const void> q = {};
  int64_t places = 0;   // queries by place
  Ints rows = {};       // row of a place, -1: empty; null: itself
  Ints positions = {};  // of rows; null: first + row
  int32_t first = 0;
  Ints buckets = {};
  Source sources[kMostSources] = {};
  int32_t source_count = 0;
  Dropout dropout = {};
};

// Where the results of a tile that was cut are kept until they are merged, by head
// (example * heads + head), part and place in the tile; of the number that computes.
struct AttendParts {
  void* out = nullptr;   // [heads, parts, 64, value width], not divided by the sums
  void* most = nullptr;  // [heads, parts, 64]
  void* sums = nullptr;  // [heads, parts, 64]
};

struct Attend {
  Attention given = {};
  Pieces pieces = {};  // of tiles of queries
  AttendParts parts = {};
  Rows<void> out = {};  // every row of q that has a place is written
  Rows<void> lse = {};  // [B, H, queries, 1], of the number that computes
};

// Sums in fixed point, so that they do not depend on the order of atomic additions.
// `unit` [1] is what 1 stands for; it becomes NaN where what is added is not finite.
struct FixedSums {
  int64_t* sums = nullptr;
  double* unit = nullptr;
};

// The gradients of queries, and what is summed with them. Null: not wanted.
struct QueryGradient {
  Attention given = {};
  Pieces pieces = {};               // of tiles of queries
  void* part_slopes = nullptr;      // [heads, parts, 64, width], of cut tiles
  Rows<const void> out_slope = {};  // gradient of out
  // [B, H, queries, 1] of the number that computes: lse times log2(e), plus infinity
  // where a query sees nothing; and sum(out * out_slope) - lse_slope.
  Rows<const void> lse2 = {}, delta = {};
  Rows<void> q = {};  // written for every row that has a place
  struct OfSource {
    // Partial sums, one for every piece: [pieces, heads], heads being example * heads +
    // head.
    double* slopes = nullptr;
    FixedSums table = {};    // [H|1, entries]
    FixedSums vectors = {};  // [H|1, entries, width]
    // [B, H, queries, places of keys] of the number that computes; what is seen is set.
    Rows<void> dense = {};
  };
  OfSource sources[kMostSources] = {};
};

// The gradients of the keys and values of one source, by place. Null: not wanted.
struct KeyGradient {
  Attention given = {};
  int32_t source = 0;
  Pieces pieces = {};           // of tiles of keys
  void* part_k = nullptr;       // [heads, parts, 64, width], of cut tiles
  void* part_v = nullptr;       // [heads, parts, 64, value width]
  void* part_column = nullptr;  // [heads, parts, 64]
  Rows<const void> out_slope = {};
  Rows<const void> lse2 = {}, delta = {};
  // [B, H, places, ..]; of the number that computes where `exact`, else of `type`.
  bool exact = false;
  Rows<void> k = {}, v = {};
  Rows<void> column = {};  // [B, H, places, 1] of the number that computes
};

// All launch kernels on `stream` and return a cudaError_t, 0 if they could be launched.

// Widths of any size and every type.
int attend(const Attend& task, Stream stream);
int query_gradient(const QueryGradient& task, Stream stream);
int key_gradient(const KeyGradient& task, Stream stream);

// lse2 and delta of the gradients from results and their gradients; all tensors [B, H,
// queries, ..]. A null lse_slope is 0.
struct GradientRows {
  Type type = Type::kFloat;
  int64_t examples = 0, heads = 0, queries = 0, value_width = 0;
  Rows<const void> out = {}, out_slope = {};
  Rows<const void> lse = {}, lse_slope = {};
  Rows<void> lse2 = {}, delta = {};
};
int gradient_rows(const GradientRows& task, Stream stream);

}  // namespace longspan::cuda
