// The biases of pairs of queries and keys, a batch of keys at a time; see vec.h for who
// may include this.

#pragma once

#include "longspan/kernels/cpu/attention_tile.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// How many entries are there at a time, each with 64 lanes.
constexpr int64_t kRingRows = 256;

inline int64_t ring_row(int64_t entry) { return entry % kRingRows * kTile; }

// Products of vectors of entries with the queries of a tile, made as they are needed:
// neighbouring batches need mostly the same. Where gradients are collected, rows that
// leave are handed to what is given as `leave`.
template <class Number>
class EntryProducts {
 public:
  EntryProducts(Scratch& scratch, int64_t width, bool with_slopes)
      : width_(width), values_(scratch.take<Number>(kRingRows * kTile)) {
    if (with_slopes) slopes_ = scratch.take<Number>(kRingRows * kTile);
  }

  // `queries` [width, 64]: scaled, with the offset.
  void start(const HeadBias<Number>& bias, const Number* queries) {
    bias_ = &bias;
    queries_ = queries;
    from_ = to_ = 0;
  }

  const Number* value(int64_t entry) const { return values_ + ring_row(entry); }
  Number* slope(int64_t entry) { return slopes_ + ring_row(entry); }

  // Makes entries from .. to - 1, kRingRows at most, be there.
  template <class Leave>
  void need(int64_t from, int64_t to, const Leave& leave) {
    const bool apart = to < from_ || from > to_ || from_ == to_;
    const int64_t all_from = from < from_ ? from : from_, all_to = to > to_ ? to : to_;
    if (apart) {
      drop(from_, to_, leave);
      from_ = to_ = from;
    } else if (all_to - all_from > kRingRows) {
      if (from < from_) {
        drop(from + kRingRows, to_, leave);
        to_ = from + kRingRows;
      } else {
        drop(from_, to - kRingRows, leave);
        from_ = to - kRingRows;
      }
    }
    if (from < from_) {
      make(from, from_);
      from_ = from;
    }
    if (to > to_) {
      make(to_, to);
      to_ = to;
    }
  }

  template <class Leave>
  void finish(const Leave& leave) {
    drop(from_, to_, leave);
    from_ = to_ = 0;
  }

 private:
  template <class Leave>
  void drop(int64_t from, int64_t to, const Leave& leave) {
    if (from < to) leave(from, to);
  }

  template <int rows>
  void make_block(int64_t entry) {
    constexpr int kStep = kWide * kLanesOf<Number>;
    const Number* const left = bias_->vectors + entry * padded(width_);
    for (int64_t lane = 0; lane < kTile; lane += kStep) {
      Block<Number, rows, kWide> sums;
      sums.clear();
      sums.add_products([&](int i, int64_t x) { return left[i * padded(width_) + x]; },
                        [&](int64_t x) { return queries_ + x * kTile + lane; }, 0,
                        width_);
      sums.each([&](int i, int j, const Vector<Number>& sum) {
        store(sum, values_ + ring_row(entry + i) + lane + j * kLanesOf<Number>);
      });
    }
  }

  void make(int64_t from, int64_t to) {
    constexpr int kRows = rows_of_block(kWide);
    int64_t entry = from;
    for (; entry + kRows <= to; entry += kRows) make_block<kRows>(entry);
    for (; entry < to; ++entry) make_block<1>(entry);
    if (!slopes_) return;
    for (entry = from; entry < to; ++entry)
      std::memset(slope(entry), 0, kTile * sizeof(Number));
  }

  int64_t width_;
  Number* values_;
  Number* slopes_ = nullptr;
  const HeadBias<Number>* bias_ = nullptr;
  const Number* queries_ = nullptr;
  int64_t from_ = 0, to_ = 0;  // entries that are there
};

// The entry of every pair of a batch.
class PairEntries {
 public:
  explicit PairEntries(Scratch& scratch)
      : entries_(scratch.take<int32_t>(kTile * kTile)) {}

  const int32_t* of(int64_t key) const { return entries_ + key * kTile; }

  // All entries of the last batch are in least() .. most().
  int64_t least() const { return least_; }
  int64_t most() const { return most_; }

  // Where pairs are hidden they get the entry of a pair that is not.
  template <class Number, class Stored>
  void find(const QueryTile& queries, const KeyBatch<Stored>& batch,
            const HeadSource<Number, Stored>& source) {
    const HeadBias<Number>& bias = source.bias;
    const int32_t last_row = bias.rows - 1, last_column = bias.columns - 1;
    const auto bounded = [](int32_t x, int32_t last) {
      return x < 0 ? 0 : x > last ? last : x;
    };
    for (int64_t key = 0; key < batch.count; ++key) {
      int32_t* const to = entries_ + key * kTile;
      const int32_t row = batch.row[key];
      const int32_t position = source.positions ? source.positions[row] : row;
      if (bias.labels) {
        for (int64_t lane = 0; lane < kTile; ++lane)
          to[lane] = bias.labels[queries.row[lane] * bias.labels_stride + row];
      } else if (bias.grid_width == 0) {
        const int32_t zero = position + bias.first;
        for (int64_t lane = 0; lane < kTile; ++lane)
          to[lane] = bounded(queries.position[lane] - zero, last_row);
      } else {
        const int32_t width = bias.grid_width;
        const int32_t key_row = floor_of(position, width);
        const int32_t zero_row = key_row + bias.first;
        const int32_t zero_column = position - key_row * width + bias.first_column;
        for (int64_t lane = 0; lane < kTile; ++lane) {
          const int32_t query_row = floor_of(queries.position[lane], width);
          const int32_t query_column = queries.position[lane] - query_row * width;
          to[lane] = bounded(query_row - zero_row, last_row) * bias.columns +
                     bounded(query_column - zero_column, last_column);
        }
      }
    }
    measure(batch);
  }

 private:
  static int32_t floor_of(int32_t a, int32_t b) {
    return a >= 0 ? a / b : -((b - 1 - a) / b);
  }

  template <class Stored>
  void measure(const KeyBatch<Stored>& batch) {
    int32_t least = INT32_MAX, most = 0;
    if (!batch.masked) {
      for (int64_t i = 0; i < batch.count * kTile; ++i) {
        least = entries_[i] < least ? entries_[i] : least;
        most = entries_[i] > most ? entries_[i] : most;
      }
    } else {
      for (int64_t key = 0; key < batch.count; ++key)
        for (int64_t lane = 0; lane < kTile; ++lane) {
          if ((batch.bits[key] >> lane & 1) == 0) continue;
          const int32_t entry = entries_[key * kTile + lane];
          least = entry < least ? entry : least;
          most = entry > most ? entry : most;
        }
      for (int64_t i = 0; i < batch.count * kTile; ++i) {
        const int32_t entry = entries_[i];
        entries_[i] = entry < least ? least : entry > most ? most : entry;
      }
    }
    for (int64_t i = batch.count * kTile; i < batch.blocks_end() * kTile; ++i)
      entries_[i] = least;
    least_ = least;
    most_ = most;
  }

  int32_t* entries_;
  int64_t least_ = 0, most_ = 0;
};

// Calls work(from, to) for ranges of kRingRows entries that pairs of a batch have
// entries in.
template <class Work>
void each_range(const PairEntries& entries, int64_t keys, const Work& work) {
  if (entries.most() - entries.least() < kRingRows)
    return work(entries.least(), entries.most() + 1);
  for (int64_t from = entries.least(); from <= entries.most(); from += kRingRows) {
    const int64_t to =
        from + kRingRows <= entries.most() ? from + kRingRows : entries.most() + 1;
    bool any = false;
    for (int64_t i = 0; i < keys * kTile && !any; ++i)
      any = entries.of(0)[i] >= from && entries.of(0)[i] < to;
    if (any) work(from, to);
  }
}

// The sum of all biases of every pair of a batch.
template <class Number>
class BatchBias {
 public:
  BatchBias(Scratch& scratch, int64_t width, bool with_slopes)
      : tile_(scratch.take<Number>(kTile * kTile)),
        shifted_(scratch.take<Number>(width * kTile)),
        width_(width),
        entries(scratch),
        products(scratch, width, with_slopes) {}

  // `transposed` [width, 64] are the queries of the tile times `scale`, which includes
  // log2(e).
  void start(const HeadBias<Number>& bias, const Number* transposed, Number scale) {
    if (!bias.vectors) return;
    const Number* queries = transposed;
    if (bias.offset) {
      for (int64_t x = 0; x < width_; ++x)
        for (int64_t lane = 0; lane < kTile; ++lane)
          shifted_[x * kTile + lane] =
              transposed[x * kTile + lane] + bias.offset[x] * scale;
      queries = shifted_;
    }
    products.start(bias, queries);
  }

  // [keys of the batch, 64], times log2(e).
  template <class Stored, class Leave>
  const Number* of(const QueryTile& queries, const KeyBatch<Stored>& batch,
                   const HeadSource<Number, Stored>& source, const Leave& leave) {
    const HeadBias<Number>& bias = source.bias;
    const auto log2e = static_cast<Number>(kLog2E);
    const int64_t keys = batch.blocks_end();
    for (int64_t key = 0; key < keys; ++key) {
      Number* const to = tile_ + key * kTile;
      const int32_t row = batch.row[key];
      const Number column = bias.column ? bias.column[row] * log2e : 0;
      for (int64_t lane = 0; lane < kTile; ++lane) to[lane] = column;
      if (bias.slope) {
        const int32_t position = source.positions ? source.positions[row] : row;
        const Number slope = -*bias.slope * log2e;
        for (int64_t lane = 0; lane < kTile; ++lane) {
          const int32_t distance = queries.position[lane] - position;
          to[lane] += slope * static_cast<Number>(distance < 0 ? -distance : distance);
        }
      }
      if (bias.dense)
        for (int64_t lane = 0; lane < kTile; ++lane)
          to[lane] += log2e * bias.dense[queries.row[lane] * bias.dense_stride + row];
    }
    if (!bias.table && !bias.vectors) return tile_;

    entries.find(queries, batch, source);
    if (bias.table)
      for (int64_t i = 0; i < keys * kTile; ++i)
        tile_[i] += log2e * bias.table[entries.of(0)[i]];
    if (bias.vectors)
      each_range(entries, keys, [&](int64_t from, int64_t to) {
        products.need(from, to, leave);
        const bool all = entries.most() - entries.least() < kRingRows;
        for (int64_t key = 0; key < keys; ++key)
          for (int64_t lane = 0; lane < kTile; ++lane) {
            const int32_t entry = entries.of(key)[lane];
            if (all || (entry >= from && entry < to))
              tile_[key * kTile + lane] += products.value(entry)[lane];
          }
      });
    return tile_;
  }

 private:
  Number* tile_;
  Number* shifted_;
  int64_t width_;

 public:
  PairEntries entries;
  EntryProducts<Number> products;
};

template <class Number>
bool has_bias(const HeadBias<Number>& bias) {
  return bias.column || bias.slope || bias.table || bias.vectors || bias.dense;
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
