// What the forward and backward passes of block-sparse attention share: a tile of 64
// queries, which lie in the lanes of vectors, and the keys it meets, at most 64 at a
// time; see vec.h for who may include this.
//
// Scores are kept as powers of 2: multiplied by log2(e).

#pragma once

#include "longspan/kernels/cpu/block_attention.h"
#include "longspan/kernels/cpu/vec_memory.h"
#include "longspan/kernels/cpu/vec_product.h"
#include "longspan/kernels/cpu/vec_random.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

constexpr int64_t kTile = 64;
constexpr double kLog2E = 1.44269504088896341, kLn2 = 0.693147180559945309;

// Vectors of lanes at a time: where a batch is masked it is worth leaving some out.
constexpr int kNarrow = kWide == 4 ? 1 : kWide;

// The queries of a tile. Lanes without a query have row 0, and nothing is kept of what
// they give.
struct QueryTile {
  uint64_t live = 0;  // a bit for each lane that has a query
  int64_t lanes = 0;  // up to the last that has one
  int32_t row[kTile];
  int32_t position[kTile];
  int32_t bucket[kTile];
  int32_t least_position = 0, largest_position = 0;

  template <class Stored>
  QueryTile(const HeadQueries<Stored>& queries, int64_t tile) {
    for (int64_t lane = 0; lane < kTile; ++lane) {
      const int64_t place = tile * kTile + lane;
      int32_t at = -1;
      if (place < queries.places)
        at = queries.rows ? queries.rows[place] : static_cast<int32_t>(place);
      if (at >= 0) {
        live |= uint64_t{1} << lane;
        lanes = lane + 1;
      } else {
        at = 0;
      }
      row[lane] = at;
    }
    bool any = false;
    for (int64_t lane = 0; lane < kTile; ++lane) {
      if (!has(lane)) continue;
      const int32_t at = row[lane];
      position[lane] = queries.positions ? queries.positions[at] : queries.first + at;
      bucket[lane] = queries.buckets ? queries.buckets[at] : 0;
      if (!any || position[lane] < least_position) least_position = position[lane];
      if (!any || position[lane] > largest_position) largest_position = position[lane];
      any = true;
    }
    for (int64_t lane = 0; lane < kTile; ++lane) {
      if (has(lane)) continue;
      position[lane] = least_position;
      bucket[lane] = 0;
    }
  }

  bool has(int64_t lane) const { return live >> lane & 1; }

  // Where the row of a lane begins, null for one without a query.
  template <class Number>
  auto in(Number* rows, int64_t stride) const {
    return [this, rows, stride](int64_t lane) {
      return has(lane) ? rows + row[lane] * stride : nullptr;
    };
  }

  template <class Test>
  uint64_t lanes_where(const int32_t* values, const Test& test) const {
    uint64_t bits = 0;
    for (int lane = 0; lane < kTile; lane += kLanes)
      bits |= bits_of(test(load(values + lane))) << lane;
    return bits;
  }
};

// Keys that a tile of queries meets together, in whole blocks of 8: those after `count`
// are zeros that nobody sees.
template <class Stored>
struct KeyBatch {
  int64_t count = 0;
  bool masked = false;  // some pair is hidden; else all bits are live
  const Stored* k[kTile];
  const Stored* v[kTile];
  int32_t row[kTile];
  int64_t place[kTile];
  uint64_t bits[kTile];  // of the queries that see the key

  int64_t blocks_end() const { return (count + 7) / 8 * 8; }
};

// Calls use(batch) until all visited keys that some query sees have been in a batch.
template <class Number, class Stored, class Use>
void each_batch(const QueryTile& queries, const HeadSource<Number, Stored>& source,
                const Visit* visits, int64_t visit_count, const Stored* zeros,
                int64_t waste_place, const Use& use) {
  if (queries.live == 0) return;
  const bool has_interval = source.from || source.to;
  bool has_buckets = source.buckets;
  for (int64_t lane = 0; lane < queries.lanes; ++lane)
    has_buckets |= queries.bucket[lane] != 0;
  const bool tested = has_interval || has_buckets || source.rows;

  const auto seen_by = [&](int32_t row) {
    uint64_t bits = queries.live;
    if (has_interval) {
      const int32_t from = source.from ? source.from[row] : INT32_MIN;
      const bool endless = !source.to;
      const int32_t to = endless ? INT32_MAX : source.to[row];
      uint64_t inside = ~uint64_t{0};
      if (from > queries.least_position)
        inside &= queries.lanes_where(queries.position,
                                      [&](const Ints& p) { return p >= from; });
      if (!endless && to <= queries.largest_position)
        inside &= queries.lanes_where(queries.position,
                                      [&](const Ints& p) { return p < to; });
      bits &= source.outside ? ~inside : inside;
    }
    if (has_buckets) {
      const int32_t bucket = source.buckets ? source.buckets[row] : 0;
      bits &= queries.lanes_where(queries.bucket,
                                  [&](const Ints& b) { return b == bucket; });
    }
    return bits;
  };

  KeyBatch<Stored> whole, some;
  const auto put = [&](KeyBatch<Stored>& batch, int32_t row, int64_t place,
                       uint64_t bits) {
    const int64_t i = batch.count++;
    batch.k[i] = source.k + row * source.k_stride;
    batch.v[i] = source.v + row * source.v_stride;
    batch.row[i] = row;
    batch.place[i] = place;
    batch.bits[i] = bits;
  };
  const auto finish = [&](KeyBatch<Stored>& batch) {
    batch.masked = batch.count < kTile;
    for (int64_t i = 0; i < batch.count; ++i)
      batch.masked |= batch.bits[i] != queries.live;
    for (int64_t i = batch.count; i < batch.blocks_end(); ++i) {
      batch.k[i] = batch.v[i] = zeros;
      batch.row[i] = batch.row[0];
      batch.place[i] = waste_place;
      batch.bits[i] = 0;
    }
    use(batch);
    batch.count = 0;
  };

  for (const Visit* visit = visits; visit < visits + visit_count; ++visit) {
    const int64_t first = visit->tile * kTile;
    const int64_t end = first + kTile < source.places ? first + kTile : source.places;
    if (!visit->mask && !tested && end - first == kTile) {
      for (int64_t place = first; place < end; ++place)
        put(whole, static_cast<int32_t>(place), place, queries.live);
      whole.masked = false;
      use(whole);
      whole.count = 0;
      continue;
    }
    for (int64_t place = first; place < end; ++place) {
      const int32_t row =
          source.rows ? source.rows[place] : static_cast<int32_t>(place);
      if (row < 0) continue;
      uint64_t bits = tested ? seen_by(row) : queries.live;
      if (visit->mask) bits &= visit->mask[place - first];
      if (bits == 0) continue;
      put(some, row, place, bits);
      if (some.count == kTile) finish(some);
    }
  }
  if (some.count > 0) finish(some);
}

// The keys, in whole blocks of `step`, that lanes lane .. lane + lanes - 1 see some of.
struct KeyRange {
  int64_t from = 0, to = 0;
};

template <class Stored>
KeyRange seen_keys(const KeyBatch<Stored>& batch, int64_t lane, int64_t lanes,
                   int64_t step) {
  if (!batch.masked) return {0, batch.count};
  const uint64_t group = (lanes == kTile ? ~uint64_t{0} : (uint64_t{1} << lanes) - 1)
                         << lane;
  int64_t from = 0, to = batch.count;
  while (from < to && (batch.bits[from] & group) == 0) ++from;
  while (to > from && (batch.bits[to - 1] & group) == 0) --to;
  if (from == to) return {0, 0};
  return {from / step * step, (to + step - 1) / step * step};
}

// Which pairs dropout keeps.
class Keep {
 public:
  Keep(const HeadDropout& dropout, const QueryTile& queries, uint32_t source)
      : dropout_(dropout), queries_(queries), source_(source) {}

  bool all() const { return dropout_.limit == 0; }

  // A bit for each query.
  uint64_t bits(int32_t key) {
    const uint32_t four = static_cast<uint32_t>(key) / 4;
    if (!drawn_ || four != four_) draw(four);
    uint64_t bits = 0;
    const uint32_t* const words = words_[key % 4];
    for (int lane = 0; lane < kTile; lane += kLanes) {
      Words some;
      std::memcpy(&some, words + lane, sizeof some);
      bits |= bits_of(some >= dropout_.limit) << lane;
    }
    return bits;
  }

 private:
  void draw(uint32_t four) {
    for (int lane = 0; lane < kTile; lane += kLanes) {
      Words rows;
      std::memcpy(&rows, queries_.row + lane, sizeof rows);
      Words words[4] = {four - Words{}, rows, dropout_.stream - Words{},
                        source_ - Words{}};
      philox(dropout_.key, words);
      for (int i = 0; i < 4; ++i)
        std::memcpy(words_[i] + lane, &words[i], sizeof words[i]);
    }
    four_ = four;
    drawn_ = true;
  }

  const HeadDropout& dropout_;
  const QueryTile& queries_;
  uint32_t source_;
  uint32_t four_ = 0;
  bool drawn_ = false;
  uint32_t words_[4][kTile];
};

// The same for the keys of a batch.
class KeptPairs {
 public:
  template <class Stored>
  KeptPairs(const KeyBatch<Stored>& batch, Keep& keep) : all_(keep.all()) {
    if (all_) return;
    for (int64_t key = 0; key < batch.blocks_end(); ++key)
      bits_[key] = keep.bits(batch.row[key]);
  }

  // Of each key; null where all are kept.
  const uint64_t* bits() const { return all_ ? nullptr : bits_; }

 private:
  bool all_;
  uint64_t bits_[kTile];
};

using Four = float __attribute__((vector_size(16)));

[[gnu::always_inline]] inline void transpose(Four (&rows)[4]) {
  using Places = int32_t __attribute__((vector_size(16)));
  const auto pick = [](const Four& a, const Four& b, const Places& places) {
    return __builtin_shuffle(a, b, places);
  };
  const Four low01 = pick(rows[0], rows[1], Places{0, 4, 1, 5});
  const Four low23 = pick(rows[2], rows[3], Places{0, 4, 1, 5});
  const Four high01 = pick(rows[0], rows[1], Places{2, 6, 3, 7});
  const Four high23 = pick(rows[2], rows[3], Places{2, 6, 3, 7});
  rows[0] = pick(low01, low23, Places{0, 1, 4, 5});
  rows[1] = pick(low01, low23, Places{2, 3, 6, 7});
  rows[2] = pick(high01, high23, Places{0, 1, 4, 5});
  rows[3] = pick(high01, high23, Places{2, 3, 6, 7});
}

// to[x * 64 + lane] = factor * rows(lane)[x]; 0 where the row is null.
template <class Number, class Rows>
void transpose_in(const Rows& rows, int64_t width, Number factor, Number* to) {
  constexpr int64_t kAtOnce = sizeof(Number) == sizeof(float) ? 4 : 1;
  for (int64_t lane = 0; lane < kTile; lane += kAtOnce) {
    const Number* some[kAtOnce];
    for (int64_t i = 0; i < kAtOnce; ++i) some[i] = rows(lane + i);
    int64_t x = 0;
    if constexpr (kAtOnce == 4)
      for (; x + 4 <= width; x += 4) {
        Four block[4] = {};
        for (int i = 0; i < 4; ++i)
          if (some[i]) std::memcpy(&block[i], some[i] + x, sizeof(Four));
        transpose(block);
        for (int i = 0; i < 4; ++i) {
          block[i] *= static_cast<float>(factor);
          std::memcpy(to + (x + i) * kTile + lane, &block[i], sizeof(Four));
        }
      }
    for (; x < width; ++x)
      for (int64_t i = 0; i < kAtOnce; ++i)
        to[x * kTile + lane + i] = some[i] ? some[i][x] * factor : 0;
  }
}

// rows(lane)[x] = factors[lane] * from[x * 64 + lane], where the row is not null.
template <class Number, class Rows>
void transpose_out(const Number* from, int64_t width, const Number* factors,
                   const Rows& rows) {
  constexpr int64_t kAtOnce = sizeof(Number) == sizeof(float) ? 4 : 1;
  for (int64_t lane = 0; lane < kTile; lane += kAtOnce) {
    Number* some[kAtOnce];
    for (int64_t i = 0; i < kAtOnce; ++i) some[i] = rows(lane + i);
    int64_t x = 0;
    if constexpr (kAtOnce == 4)
      for (; x + 4 <= width; x += 4) {
        Four block[4];
        for (int i = 0; i < 4; ++i)
          std::memcpy(&block[i], from + (x + i) * kTile + lane, sizeof(Four));
        transpose(block);
        for (int i = 0; i < 4; ++i) {
          block[i] *= static_cast<float>(factors[lane + i]);
          if (some[i]) std::memcpy(some[i] + x, &block[i], sizeof(Four));
        }
      }
    for (; x < width; ++x)
      for (int64_t i = 0; i < kAtOnce; ++i)
        if (some[i]) some[i][x] = from[x * kTile + lane + i] * factors[lane + i];
  }
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
