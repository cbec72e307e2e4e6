// What the vector code sees of block-sparse attention: one head of one example at a
// time. No torch, no containers: see vec.h.
//
// `Stored` is how a number lies in memory: itself, or uint16_t for bfloat16. Integers
// over rows are null where rows have their default: position = first + row, bucket 0,
// place = row.

#pragma once

#include <cstdint>

#include "longspan/kernels/cpu/padding.h"

namespace longspan::cpu {

// Added to the scores of one head; see Bias in ../block_attention.h. Null: none.
template <class Number>
struct HeadBias {
  const Number* column = nullptr;   // [keys]
  const Number* slope = nullptr;    // [1]
  const Number* table = nullptr;    // [entries]
  const Number* vectors = nullptr;  // [entries, padded width]
  const Number* offset = nullptr;   // [width]
  const int32_t* labels = nullptr;  // [queries, keys]
  const Number* dense = nullptr;    // [queries, keys]
  int64_t labels_stride = 0, dense_stride = 0;
  int32_t first = 0, rows = 1;
  int32_t grid_width = 0, first_column = 0, columns = 1;
};

template <class Stored>
struct HeadQueries {
  const Stored* q = nullptr;  // [queries, width]
  int64_t stride = 0;
  int64_t places = 0;
  const int32_t* rows = nullptr;  // [places], -1: empty
  const int32_t* positions = nullptr;
  int32_t first = 0;
  const int32_t* buckets = nullptr;
};

template <class Number, class Stored = Number>
struct HeadSource {
  const Stored* k = nullptr;  // [keys, width]
  const Stored* v = nullptr;  // [keys, value width]
  int64_t k_stride = 0, v_stride = 0;
  int64_t places = 0;
  const int32_t* rows = nullptr;  // [places], -1: empty
  const int32_t* positions = nullptr;
  const int32_t* from = nullptr;
  const int32_t* to = nullptr;
  bool outside = false;
  const int32_t* buckets = nullptr;
  HeadBias<Number> bias = {};
  uint32_t number = 0;  // among the sources
};

// The words of four keys from 4 * c on are philox() at (c, row of q, stream, number of
// the source); see base/random.h.
struct HeadDropout {
  uint64_t key = 0;
  uint32_t limit = 0;  // words below it drop the pair; 0: there is no dropout
  uint32_t stream = 0;
  double factor = 1;  // of the weights that stay
};

// A tile of keys that a tile of queries visits.
struct Visit {
  int32_t tile = 0;
  const uint64_t* mask = nullptr;  // a MaskTile; null: all pairs
};

// One tile of queries against tiles of keys. A task with a null scratch is asked only
// for its bytes.
template <class Number, class Stored = Number>
struct AttendTask {
  int64_t width = 0, value_width = 0;
  double scale = 0;
  HeadQueries<Stored> queries = {};
  int64_t tile = 0;  // of queries
  const HeadSource<Number, Stored>* sources = nullptr;
  int64_t source_count = 0;
  const Visit* visits = nullptr;          // of the first source, of the second, ..
  const int64_t* visit_counts = nullptr;  // of each source
  HeadDropout dropout = {};
  Stored* out = nullptr;  // [queries, value width]
  int64_t out_stride = 0;
  Number* lse = nullptr;  // [queries]
  // Instead, where a row is computed in parts: [64, value width] and [64], by place.
  Number* part_out = nullptr;
  Number* part_lse = nullptr;
  void* scratch = nullptr;  // of attend_bytes(), at a multiple of 64
};

// Sums over tiles of queries, for places of keys from `first_place` on. Null: not
// wanted.
template <class Number>
struct KeySums {
  int64_t first_place = 0, places = 0;
  Number* k = nullptr;       // [places + 1, padded width]; the last row is for waste
  Number* v = nullptr;       // [places + 1, padded value width]
  Number* column = nullptr;  // [places + 1]
  double* slope = nullptr;   // [1]
  // The rest by entry, 0 before entry_from and from entry_to on, where nothing is
  // written.
  int64_t entry_from = 0, entry_to = 0;
  double* table = nullptr;    // [entries]
  Number* vectors = nullptr;  // [entries, padded width]
  double* offset = nullptr;   // [width]; all of it
};

// One tile of queries against tiles of keys that have sums.
template <class Number>
struct GradientTask {
  int64_t width = 0, value_width = 0;
  double scale = 0;
  HeadQueries<Number> queries = {};
  int64_t tile = 0;
  HeadSource<Number> source = {};
  const Visit* visits = nullptr;
  int64_t visit_count = 0;
  HeadDropout dropout = {};
  // Of the forward pass, and the gradients it is given, by row of q.
  const Number* out = nullptr;
  const Number* lse = nullptr;
  const Number* out_slope = nullptr;
  const Number* lse_slope = nullptr;
  int64_t out_stride = 0, out_slope_stride = 0;

  KeySums<Number>* sums = nullptr;
  Number* q_slope = nullptr;  // [64, padded width], by place: set; null: not wanted
  Number* dense = nullptr;    // [queries, keys], added to; null: not wanted
  int64_t dense_stride = 0;
  void* scratch = nullptr;  // of gradient_bytes(), at a multiple of 64
};

namespace portable {
int64_t attend_bytes(const AttendTask<float>& task);
int64_t attend_bytes(const AttendTask<double>& task);
int64_t gradient_bytes(const GradientTask<float>& task);
int64_t gradient_bytes(const GradientTask<double>& task);
void attend(const AttendTask<float>& task);
void attend(const AttendTask<double>& task);
void attend_gradient(const GradientTask<float>& task);
void attend_gradient(const GradientTask<double>& task);
}  // namespace portable
namespace avx2 {
void attend(const AttendTask<float>& task);
void attend(const AttendTask<double>& task);
void attend_gradient(const GradientTask<float>& task);
void attend_gradient(const GradientTask<double>& task);
}  // namespace avx2
namespace avx512 {
void attend(const AttendTask<float>& task);
void attend(const AttendTask<double>& task);
void attend_gradient(const GradientTask<float>& task);
void attend_gradient(const GradientTask<double>& task);
}  // namespace avx512
namespace avx512_bf16 {
int64_t attend_bytes(const AttendTask<float, uint16_t>& task);
void attend(const AttendTask<float, uint16_t>& task);
}  // namespace avx512_bf16

}  // namespace longspan::cpu
