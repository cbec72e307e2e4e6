// Block-sparse attention on Hopper (compute capability 9.0): bfloat16 and half, widths
// of a multiple of 8 up to 128, one source. See hopper_serves() for what else it asks.
// Lists come from hopper_lists.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

enum class HopperStep { kAttend, kKeyGradient, kQueryGradient };

// Which kernel of a step: how many tiles of 64 own rows share what is loaded, kLong
// for rows of many tiles. kGathered takes rows by place; the others take places as
// rows.
enum class HopperKernel { kLong, kTriple, kPair, kSingle, kGathered };

struct HopperShape {
  int32_t groups = 0;   // tiles of own rows, a warpgroup each; 0: no such kernel
  int32_t tiles = 1;    // tiles of other rows that an entry of the lists stands for
  int32_t at_once = 1;  // blocks of threads on a multiprocessor
  // Warpgroups take turns, so that no tile may be for some of them only.
  bool in_turn = false;
};

// `wide`: for widths above 64, of keys or of values.
HopperShape hopper_shape(HopperStep step, HopperKernel kernel, bool wide);

// Own rows are queries; of keys where the step is kKeyGradient.
struct HopperPiece {
  int32_t tiles[3] = {-1, -1, -1};  // of own rows, one for each group; -1: none
  int32_t first = -1, end = -1;     // entries; a first of -1: no piece
  int32_t part = -1;  // where its result goes among the parts; -1: it is the result
  int32_t unused[2] = {};
};

struct HopperEntry {
  int32_t tile = 0;  // of other rows, `tiles` of 64
  int32_t tags[3] = {kNone, kNone, kNone};

  static constexpr int32_t kAll = -1;   // all pairs of group and tile
  static constexpr int32_t kNone = -2;  // none; else the index of a mask
};

struct HopperCut {
  int32_t tiles[3] = {-1, -1, -1};
  int32_t first = 0, count = 0;  // parts; a count of 0: no cut
  int32_t unused[3] = {};
};

// In device memory, aligned to 16 bytes.
struct HopperLists {
  HopperKernel kernel = HopperKernel::kLong;
  const HopperPiece* pieces = nullptr;  // [patterns, piece_count], long ones first
  const HopperEntry* entries = nullptr;
  const uint64_t* masks = nullptr;   // [masks, 64 own rows, tiles], bit = other row
  const HopperCut* cuts = nullptr;   // [patterns, cut_count]
  const int32_t* pattern = nullptr;  // [examples|1, heads|1]
  int32_t examples = 1, heads = 1;   // extents of `pattern`
  int32_t piece_count = 0, cut_count = 0;
  int32_t parts = 0;     // of one head
  bool is_even = false;  // all pieces are equally long
};

// Places are rounded up to a multiple of this in all arrays by place.
constexpr int64_t kHopperPad = 128;
constexpr int64_t hopper_padded(int64_t places) {
  return (places + kHopperPad - 1) / kHopperPad * kHopperPad;
}

// What hopper_places() makes: [examples|1, heads|1, ..] by place, contiguous and
// aligned to 16 bytes. Null `from`: every query sees every key of the layout.
struct HopperPlaces {
  int32_t* from = nullptr;          // [.., padded keys]
  int32_t* to = nullptr;            // [.., padded keys]
  int32_t* key_bounds = nullptr;    // [.., padded keys / 64, 4]
  int32_t* positions = nullptr;     // [.., padded queries], where gathered
  int32_t* query_bounds = nullptr;  // [.., padded queries / 64, 2], where gathered
  int32_t key_examples = 1, key_heads = 1;
  int32_t query_examples = 1, query_heads = 1;
};

struct HopperAttention {
  Type type = Type::kBFloat16;
  int64_t examples = 0, heads = 0, queries = 0, keys = 0;  // rows of q; of k and v
  int64_t width = 0, value_width = 0;
  double scale = 1;
  Rows<const void> q = {}, k = {}, v = {};
  // Rows of places, -1: empty. Null: places are rows. Where there is either, lists
  // must be for kGathered.
  Ints query_rows = {}, key_rows = {};
  int64_t query_places = 0, key_places = 0;  // queries and keys where not gathered
  // A pair is seen where from <= position < to. Null: no such end.
  Ints from = {}, to = {};  // by row of k
  Ints positions = {};      // by row of q; null: first + row. Gathered queries only
  int32_t first = 0;
  HopperPlaces places = {};
};

// Fills `places`, whose pointers and extents are set; only needed where there are
// intervals or rows. An extent is 1 only where all that it stands for has one.
int hopper_places(const HopperAttention& given, Stream stream);

struct HopperAttend {
  HopperAttention given = {};
  HopperLists lists = {};
  Rows<void> out = {};         // of `type`; rows that have no place are not written
  Rows<void> lse = {};         // float, [B, H, queries]
  int32_t* counter = nullptr;  // [1] scratch
  // Scratch where lists.parts > 0, aligned to 16 bytes: hopper_part_numbers().
  float* part_out = nullptr;
  float* part_sums = nullptr;
};

// Numbers of `part_out` (also of part_k, part_v and part_q), and of `part_sums`.
struct HopperParts {
  int64_t out = 0, sums = 0;
};
HopperParts hopper_part_numbers(HopperStep step, const HopperAttention& given,
                                const HopperLists& lists);

// Whether rows of numbers of two bytes that lie so many apart can be gathered: one
// instruction multiplies bytes of a step by the row.
constexpr bool hopper_gathers(int64_t row_step) { return row_step * 2 <= INT32_MAX; }

struct HopperGradient {
  HopperAttention given = {};
  HopperLists of_queries = {}, of_keys = {};
  // Of `type`; where rows are gathered, out_slope as hopper_gathers() has it.
  Rows<const void> out = {}, out_slope = {};
  Rows<const void> lse = {}, lse_slope = {};  // float; lse_slope may be null
  float* lse2 = nullptr;                      // scratch [B, H, padded query places]
  float* delta = nullptr;                     // scratch [B, H, padded query places]
  Rows<void> q = {};                          // rows that have no place are not written
  Rows<void> k = {}, v = {};                  // [B, H, key places, ..], by place
  // k and v are by row instead, where no row has two places; rows that have none are
  // not written.
  bool keys_by_row = false;
  int32_t* counter = nullptr;  // [2] scratch
  float* part_q = nullptr;
  float* part_k = nullptr;
  float* part_v = nullptr;
};

// Whether this build has these kernels; whether the current device runs them as well.
bool hopper_is_built();
bool is_hopper();

// Whether these kernels can serve it on the current device: bfloat16 or half; widths as
// above; scale > 0; data and strides multiples of 16 bytes; at least one query and key;
// positions only where rows are gathered. Lists and results are not looked at; results
// must be aligned as the inputs are.
bool hopper_serves(const HopperAttention& given);

// Launch kernels on `stream` and return a cudaError_t, 0 if they could be launched.
int hopper_attend(const HopperAttend& task, Stream stream);
// All three gradients: of q, and of k and v for every head of q.
int hopper_gradient(const HopperGradient& task, Stream stream);

}  // namespace longspan::cuda
