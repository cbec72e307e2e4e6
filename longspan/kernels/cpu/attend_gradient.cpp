// Block-sparse attention backward: one tile of queries and some of its keys. Weights
// are computed again from the lse.

#include "longspan/kernels/cpu/attention_bias.h"
#include "longspan/kernels/cpu/block_attention.h"
#include "longspan/kernels/cpu/vec_math.h"
#include "longspan/kernels/cpu/vec_sums.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// Adds products to rows of numbers in memory: to(i)[y] += sum over x of
// left(i, x) * right(x)[y] for y < width, a multiple of kPadding, and i < count, a
// multiple of 8.
template <class Number>
class AddProducts {
 public:
  template <class Left, class Right, class To, class Range>
  static void run(int64_t count, int64_t width, const Left& left, const Right& right,
                  const To& to, const Range& range) {
    int64_t y = 0;
    for (; y + kWide * kLanes <= width; y += kWide * kLanes)
      columns<kWide>(count, y, left, right, to, range);
    for (; y + 2 * kLanes <= width; y += 2 * kLanes)
      columns<2>(count, y, left, right, to, range);
    for (; y < width; y += kLanes) columns<1>(count, y, left, right, to, range);
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;

  template <int vectors, class Left, class Right, class To, class Range>
  static void columns(int64_t count, int64_t y, const Left& left, const Right& right,
                      const To& to, const Range& range) {
    constexpr int kRows = rows_of_block(vectors);
    for (int64_t row = 0; row < count; row += kRows) {
      const KeyRange x = range(row, kRows);
      if (x.from >= x.to) continue;
      Block<Number, kRows, vectors> sums;
      sums.clear();
      sums.add_products([&](int i, int64_t at) { return left(row + i, at); },
                        [&](int64_t at) { return right(at) + y; }, x.from, x.to);
      sums.each([&](int i, int j, const Vector<Number>& sum) {
        Number* const place = to(row + i) + y + j * kLanes;
        store(load(place) + sum, place);
      });
    }
  }
};

template <class Number>
class TileGradient {
 public:
  TileGradient(const GradientTask<Number>& task, Scratch& scratch)
      : task_(task),
        width_(padded(task.width)),
        value_width_(padded(task.value_width)),
        queries_(scratch.take<Number>(task.width * kTile)),
        slopes_(scratch.take<Number>(task.value_width * kTile)),
        query_rows_(scratch.take<Number>(width_ * kTile)),
        slope_rows_(scratch.take<Number>(value_width_ * kTile)),
        weights_(scratch.take<Number>(kTile * kTile)),
        score_slopes_(scratch.take<Number>(kTile * kTile)),
        key_rows_(scratch.take<Number>(width_ * kTile)),
        zeros_(scratch.take<Number>(width_ > value_width_ ? width_ : value_width_)),
        lse_(scratch.take<Number>(kTile)),
        mean_(scratch.take<Number>(kTile)),
        shifted_rows_(scratch.take<Number>(width_ * kTile)),
        entry_slopes_(scratch.take<Number>(width_ * kTile)),
        bias_(scratch, task.width, /*with_slopes=*/true) {}

  void run() {
    const QueryTile queries(task_.queries, task_.tile);
    const KeySums<Number>& sums = *task_.sums;
    wants_vectors_ =
        task_.source.bias.vectors && (task_.q_slope || sums.vectors || sums.offset);
    wants_slopes_ = task_.q_slope || sums.k || sums.column || sums.slope ||
                    sums.table || task_.dense || wants_vectors_;
    prepare(queries);
    const HeadSource<Number>& source = task_.source;
    Keep keep(task_.dropout, queries, source.number);
    const bool biased = has_bias(source.bias);
    if (biased) start_bias();
    each_batch(queries, source, task_.visits, task_.visit_count, zeros_,
               task_.sums->first_place + task_.sums->places,
               [&](const KeyBatch<Number>& batch) {
                 const Number* const bias =
                     biased ? bias_.of(queries, batch, source, leave()) : nullptr;
                 add(queries, batch, bias, keep);
                 if (biased && wants_slopes_) add_bias_slopes(queries, batch);
               });
    if (wants_vectors_) finish_vectors();
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;

  static void clear(Number* numbers, int64_t count) {
    std::memset(numbers, 0, count * sizeof(Number));
  }

  // Rows of the queries of the tile, zeros where there is none.
  void copy_rows(const QueryTile& queries, const Number* from, int64_t stride,
                 int64_t width, Number* to) {
    clear(to, padded(width) * kTile);
    for (int64_t lane = 0; lane < queries.lanes; ++lane)
      if (queries.has(lane))
        std::memcpy(to + lane * padded(width), from + queries.row[lane] * stride,
                    width * sizeof(Number));
  }

  void prepare(const QueryTile& queries) {
    const auto scale = static_cast<Number>(task_.scale * kLog2E);
    transpose_in(queries.in(task_.queries.q, task_.queries.stride), task_.width, scale,
                 queries_);
    transpose_in(queries.in(task_.out_slope, task_.out_slope_stride), task_.value_width,
                 Number{1}, slopes_);
    copy_rows(queries, task_.queries.q, task_.queries.stride, task_.width, query_rows_);
    copy_rows(queries, task_.out_slope, task_.out_slope_stride, task_.value_width,
              slope_rows_);
    if (task_.q_slope) clear(task_.q_slope, width_ * kTile);
    clear(zeros_, width_ > value_width_ ? width_ : value_width_);
    for (int64_t lane = 0; lane < kTile; ++lane) {
      lse_[lane] = __builtin_inf();  // makes weights 0
      mean_[lane] = 0;
      if (!queries.has(lane)) continue;
      const int64_t row = queries.row[lane];
      if (task_.lse[row] == static_cast<Number>(-__builtin_inf())) continue;
      lse_[lane] = task_.lse[row] * static_cast<Number>(kLog2E);
      const Number* const out = task_.out + row * task_.out_stride;
      const Number* const slope = slope_rows_ + lane * value_width_;
      mean_[lane] = static_cast<Number>(dot(out, slope, task_.value_width) -
                                        static_cast<double>(task_.lse_slope[row]));
    }
  }

  void add(const QueryTile& queries, const KeyBatch<Number>& batch, const Number* bias,
           Keep& keep) {
    const KeptPairs kept(batch, keep);
    if (!batch.masked && queries.lanes > kTile - kNarrow * kLanes)
      weigh_lanes<kWide>(queries, batch, bias, kept.bits());
    else
      weigh_lanes<kNarrow>(queries, batch, bias, kept.bits());
    sum_over_queries(queries, batch);
    if (task_.q_slope) sum_over_keys(batch);
  }

  template <int vectors>
  void weigh_lanes(const QueryTile& queries, const KeyBatch<Number>& batch,
                   const Number* bias, const uint64_t* kept) {
    constexpr int kGroup = vectors * kLanes, kRows = rows_of_block(vectors);
    for (int64_t lane = 0; lane < kTile; lane += kGroup) {
      const KeyRange keys =
          lane < queries.lanes ? seen_keys(batch, lane, kGroup, kRows) : KeyRange{0, 0};
      for (int64_t at = lane; at < lane + kGroup; at += 4) seen_[at / 4] = keys;
      for (int64_t key = 0; key < batch.blocks_end(); key += kRows) {
        if (key >= keys.from && key < keys.to)
          weigh<vectors>(batch, bias, kept, lane, key);
        else
          clear_weights<vectors>(lane, key);
      }
    }
  }

  template <int vectors>
  void clear_weights(int64_t lane, int64_t key) {
    for (int64_t i = key; i < key + rows_of_block(vectors); ++i)
      for (int j = 0; j < vectors; ++j) {
        store(Vector<Number>{}, weights_ + i * kTile + lane + j * kLanes);
        store(Vector<Number>{}, score_slopes_ + i * kTile + lane + j * kLanes);
      }
  }

  // Dropout of weights whose slopes nobody wants.
  template <int vectors>
  void keep_some(const uint64_t* kept, int64_t lane, int64_t key) {
    if (!kept) return;
    const auto factor = static_cast<Number>(task_.dropout.factor);
    for (int64_t i = key; i < key + rows_of_block(vectors); ++i)
      for (int j = 0; j < vectors; ++j) {
        Number* const place = weights_ + i * kTile + lane + j * kLanes;
        store(select(kept[i] >> (lane + j * kLanes), load(place) * factor,
                     Vector<Number>{}),
              place);
      }
  }

  // The weights of some keys, and the slopes of their scores.
  template <int vectors>
  [[gnu::noinline]] void weigh(const KeyBatch<Number>& batch, const Number* bias,
                               const uint64_t* kept, int64_t lane, int64_t key) {
    constexpr int kRows = rows_of_block(vectors);
    Block<Number, kRows, vectors> sums;
    sums.clear();
    const Number* const* const k = batch.k + key;
    sums.add_products([&](int i, int64_t x) { return k[i][x]; },
                      [&](int64_t x) { return queries_ + x * kTile + lane; }, 0,
                      task_.width);
    if (bias)
      sums.each([&](int i, int j, Vector<Number>& sum) {
        sum += load(bias + (key + i) * kTile + lane + j * kLanes);
      });
    sums.each([&](int i, int j, const Vector<Number>& sum) {
      Vector<Number> weight = exp2(sum - load(lse_ + lane + j * kLanes));
      if (batch.masked)
        weight = select(batch.bits[key + i] >> (lane + j * kLanes), weight,
                        Vector<Number>{});
      store(weight, weights_ + (key + i) * kTile + lane + j * kLanes);
    });

    if (!wants_slopes_) return keep_some<vectors>(kept, lane, key);
    sums.clear();
    const Number* const* const v = batch.v + key;
    sums.add_products([&](int i, int64_t x) { return v[i][x]; },
                      [&](int64_t x) { return slopes_ + x * kTile + lane; }, 0,
                      task_.value_width);
    const auto factor = static_cast<Number>(task_.dropout.factor);
    sums.each([&](int i, int j, Vector<Number>& sum) {
      const int64_t place = (key + i) * kTile + lane + j * kLanes;
      const Vector<Number> weight = load(weights_ + place);
      if (kept) {
        const uint64_t bits = kept[key + i] >> (lane + j * kLanes);
        sum = select(bits, sum * factor, Vector<Number>{});
        store(select(bits, weight * factor, Vector<Number>{}), weights_ + place);
      }
      Vector<Number> slope = weight * (sum - load(mean_ + lane + j * kLanes));
      if (batch.masked)
        slope =
            select(batch.bits[key + i] >> (lane + j * kLanes), slope, Vector<Number>{});
      store(slope, score_slopes_ + place);
    });
  }

  // To the sums of keys and values.
  void sum_over_queries(const QueryTile& queries, const KeyBatch<Number>& batch) {
    KeySums<Number>& sums = *task_.sums;
    const auto seeing = [&](int64_t key, int rows) {
      if (!batch.masked) return KeyRange{0, queries.lanes};
      uint64_t bits = 0;
      for (int i = 0; i < rows; ++i) bits |= batch.bits[key + i];
      if (bits == 0) return KeyRange{0, 0};
      return KeyRange{__builtin_ctzll(bits), kTile - __builtin_clzll(bits)};
    };
    if (sums.v)
      AddProducts<Number>::run(
          batch.blocks_end(), value_width_,
          [&](int64_t key, int64_t lane) { return weights_[key * kTile + lane]; },
          [&](int64_t lane) { return slope_rows_ + lane * value_width_; },
          [&](int64_t key) {
            return sums.v + (batch.place[key] - sums.first_place) * value_width_;
          },
          seeing);
    if (sums.k)
      AddProducts<Number>::run(
          batch.blocks_end(), width_,
          [&](int64_t key, int64_t lane) { return score_slopes_[key * kTile + lane]; },
          [&](int64_t lane) { return query_rows_ + lane * width_; },
          [&](int64_t key) {
            return sums.k + (batch.place[key] - sums.first_place) * width_;
          },
          seeing);
  }

  // To the slopes of the queries.
  void sum_over_keys(const KeyBatch<Number>& batch) {
    const Number* const* k = batch.k;
    const Number* copies[kTile];
    if (width_ != task_.width) {  // vectors may not reach beyond the end of a row
      for (int64_t key = 0; key < batch.blocks_end(); ++key) {
        Number* const copy = key_rows_ + key * width_;
        for (int64_t x = task_.width; x < width_; ++x) copy[x] = 0;
        std::memcpy(copy, batch.k[key], task_.width * sizeof(Number));
        copies[key] = copy;
      }
      k = copies;
    }
    AddProducts<Number>::run(
        kTile, width_,
        [&](int64_t lane, int64_t key) { return score_slopes_[key * kTile + lane]; },
        [&](int64_t key) { return k[key]; },
        [&](int64_t lane) { return task_.q_slope + lane * width_; },
        [&](int64_t lane, int rows) {
          KeyRange keys = seen_[lane / 4];
          if (rows > 4) {
            const KeyRange& more = seen_[lane / 4 + 1];
            if (keys.from == keys.to) return more;
            if (more.from == more.to) return keys;
            keys = {keys.from < more.from ? keys.from : more.from,
                    keys.to > more.to ? keys.to : more.to};
          }
          return keys;
        });
  }

  void start_bias() {
    const HeadBias<Number>& bias = task_.source.bias;
    const auto scale = static_cast<Number>(task_.scale * kLog2E);
    bias_.start(bias, queries_, scale);
    if (!bias.vectors) return;
    clear(entry_slopes_, width_ * kTile);
    std::memcpy(shifted_rows_, query_rows_, width_ * kTile * sizeof(Number));
    if (!bias.offset) return;
    for (int64_t lane = 0; lane < kTile; ++lane)
      for (int64_t x = 0; x < task_.width; ++x)
        shifted_rows_[lane * width_ + x] += bias.offset[x];
  }

  // What is done with rows of the products before they are forgotten.
  auto leave() {
    return [this](int64_t from, int64_t to) { take_entries(from, to); };
  }

  void take_entries(int64_t from, int64_t to) {
    KeySums<Number>& sums = *task_.sums;
    if (!wants_vectors_) return;
    if (sums.vectors) extend(from, to);
    // Eight at a time; those after the last are zeros.
    for (int64_t entry = from; entry < to; entry += 8) {
      const Number* rows[8];
      Number* targets[8];
      for (int64_t i = 0; i < 8; ++i) {
        const bool there = entry + i < to;
        rows[i] = there ? bias_.products.slope(entry + i) : zeros64_;
        targets[i] = sums.vectors
                         ? there ? sums.vectors + (entry + i) * width_ : key_rows_
                         : nullptr;
      }
      if (sums.vectors)
        AddProducts<Number>::run(
            8, width_, [&](int64_t i, int64_t lane) { return rows[i][lane]; },
            [&](int64_t lane) { return shifted_rows_ + lane * width_; },
            [&](int64_t i) { return targets[i]; },
            [](int64_t, int) {
              return KeyRange{0, kTile};
            });
      const int64_t some = to - entry < 8 ? to - entry : 8;
      AddProducts<Number>::run(
          kTile, width_, [&](int64_t lane, int64_t i) { return rows[i][lane]; },
          [&](int64_t i) { return task_.source.bias.vectors + (entry + i) * width_; },
          [&](int64_t lane) { return entry_slopes_ + lane * width_; },
          [&](int64_t, int) {
            return KeyRange{0, some};
          });
    }
  }

  // Makes the sums of entries from .. to - 1 be there.
  void extend(int64_t from, int64_t to) {
    KeySums<Number>& sums = *task_.sums;
    const auto clear_entries = [&](int64_t first, int64_t end) {
      for (int64_t entry = first; entry < end; ++entry) {
        if (sums.table) sums.table[entry] = 0;
        if (sums.vectors) clear(sums.vectors + entry * width_, width_);
      }
    };
    if (sums.entry_from == sums.entry_to) sums.entry_from = sums.entry_to = from;
    if (from < sums.entry_from) {
      clear_entries(from, sums.entry_from);
      sums.entry_from = from;
    }
    if (to > sums.entry_to) {
      clear_entries(sums.entry_to, to);
      sums.entry_to = to;
    }
  }

  void finish_vectors() {
    bias_.products.finish(leave());
    KeySums<Number>& sums = *task_.sums;
    for (int64_t lane = 0; lane < kTile; ++lane)
      for (int64_t x = 0; x < task_.width; ++x) {
        if (task_.q_slope)
          task_.q_slope[lane * width_ + x] += entry_slopes_[lane * width_ + x];
        if (sums.offset)
          sums.offset[x] += static_cast<double>(entry_slopes_[lane * width_ + x]);
      }
  }

  void add_bias_slopes(const QueryTile& queries, const KeyBatch<Number>& batch) {
    const HeadSource<Number>& source = task_.source;
    KeySums<Number>& sums = *task_.sums;
    if (sums.column)
      for (int64_t key = 0; key < batch.count; ++key) {
        Number sum = 0;
        for (int64_t lane = 0; lane < kTile; ++lane)
          sum += score_slopes_[key * kTile + lane];
        sums.column[batch.place[key] - sums.first_place] += sum;
      }
    if (sums.slope)
      for (int64_t key = 0; key < batch.count; ++key) {
        const int32_t row = batch.row[key];
        const int32_t position = source.positions ? source.positions[row] : row;
        Number sum = 0;
        for (int64_t lane = 0; lane < kTile; ++lane) {
          const int32_t distance = queries.position[lane] - position;
          sum += score_slopes_[key * kTile + lane] *
                 static_cast<Number>(distance < 0 ? -distance : distance);
        }
        *sums.slope -= static_cast<double>(sum);
      }
    if (task_.dense)
      for (int64_t lane = 0; lane < queries.lanes; ++lane) {
        Number* const to = task_.dense + queries.row[lane] * task_.dense_stride;
        for (int64_t key = 0; key < batch.count; ++key)
          if (batch.bits[key] >> lane & 1)
            to[batch.row[key]] += score_slopes_[key * kTile + lane];
      }
    if (sums.table) {
      extend(bias_.entries.least(), bias_.entries.most() + 1);
      for (int64_t i = 0; i < batch.count * kTile; ++i)
        sums.table[bias_.entries.of(0)[i]] += static_cast<double>(score_slopes_[i]);
    }
    if (wants_vectors_)
      each_range(bias_.entries, batch.count, [&](int64_t from, int64_t to) {
        bias_.products.need(from, to, leave());
        for (int64_t key = 0; key < batch.count; ++key)
          for (int64_t lane = 0; lane < kTile; ++lane) {
            const int32_t entry = bias_.entries.of(key)[lane];
            if (entry >= from && entry < to)
              bias_.products.slope(entry)[lane] += score_slopes_[key * kTile + lane];
          }
      });
  }

  const GradientTask<Number>& task_;
  int64_t width_, value_width_;  // padded
  Number* queries_;              // [width, 64]: times scale * log2(e)
  Number* slopes_;               // [value width, 64]: of out
  Number* query_rows_;           // [64, padded width]
  Number* slope_rows_;           // [64, padded value width]
  Number* weights_;              // [keys, 64]: after dropout
  Number* score_slopes_;         // [keys, 64]
  Number* key_rows_;             // [64, padded width]: copies of keys
  Number* zeros_;
  Number* lse_;               // [64]: times log2(e)
  Number* mean_;              // [64]: of the slopes of weights, under the weights
  Number* shifted_rows_;      // [64, padded width]: queries with the offset of vectors
  Number* entry_slopes_;      // [64, padded width]: of queries, by vectors
  KeyRange seen_[kTile / 4];  // keys that four lanes see some of
  const Number zeros64_[kTile] = {};
  bool wants_slopes_ = false, wants_vectors_ = false;  // of scores, through vectors
  BatchBias<Number> bias_;
};

template <class Number>
void run(const GradientTask<Number>& task) {
  Scratch scratch(task.scratch);
  TileGradient<Number>(task, scratch).run();
}

template <class Number>
int64_t bytes(const GradientTask<Number>& task) {
  Scratch scratch(nullptr);
  TileGradient<Number>(task, scratch);
  return scratch.bytes();
}

}  // namespace

int64_t gradient_bytes(const GradientTask<float>& task) { return bytes(task); }
int64_t gradient_bytes(const GradientTask<double>& task) { return bytes(task); }
void attend_gradient(const GradientTask<float>& task) { run(task); }
void attend_gradient(const GradientTask<double>& task) { run(task); }

}  // namespace longspan::cpu::LONGSPAN_ISA
