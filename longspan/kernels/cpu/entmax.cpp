// Attention with entmax, forward and backward: some of a tile's queries, all keys they
// see. Scores are computed a batch of keys at a time, and of each query those are
// listed that may have a weight: forward those with a gap below 1 from the largest so
// far, backward those in reach. All that follows goes over the lists alone.

#include "longspan/kernels/cpu/entmax.h"

#include "longspan/kernels/cpu/attention_bias.h"
#include "longspan/kernels/cpu/entmax_lists.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// The queries of a task, and of each the keys that may have a weight.
template <class Number>
class EntmaxTile {
 public:
  EntmaxTile(const EntmaxTask<Number>& task, Scratch& scratch)
      : task_(task),
        e_(task.alpha - 1),
        room_(task.most_keys + kPadding),
        transposed_(scratch.take<Number>(task.width * kTile)),
        scores_(scratch.take<Number>(kTile * kTile)),
        turned_(scratch.take<Number>(kTile * kTile)),
        numbers_(scratch.take<Number>(task.lanes * room_)),
        columns_(scratch.take<int32_t>(task.lanes * room_)),
        rows_(scratch.take<int32_t>(room_)),
        kept_(scratch.take<uint64_t>(task.dropout.limit ? room_ : 0)),
        zeros_(scratch.take<Number>(task.width)),
        bias_(scratch, task.width, /*with_slopes=*/false) {}

  // The queries asked for.
  QueryTile queries() const {
    QueryTile tile(task_.queries, task_.tile);
    const uint64_t some = task_.lanes == kTile
                              ? ~uint64_t{0}
                              : ((uint64_t{1} << task_.lanes) - 1) << task_.first;
    tile.live &= some;
    tile.lanes = tile.live == 0 ? 0 : kTile - __builtin_clzll(tile.live);
    return tile;
  }

  // work(lane) for each of them.
  template <class Work>
  void each_lane(const QueryTile& queries, const Work& work) const {
    for (int64_t lane = task_.first; lane < queries.lanes; ++lane)
      if (queries.has(lane)) work(lane);
  }

  // Where to find what belongs to a query in an array of `each` for every query.
  int64_t at(int64_t lane, int64_t each) const { return (lane - task_.first) * each; }

  KeyList<Number>& list(int64_t lane) { return lists_[lane]; }
  int64_t room() const { return room_; }  // of a list
  double e() const { return e_; }
  // By which a score in powers of 2 is multiplied to be one in units of 1 / e.
  Number unit() const { return static_cast<Number>(e_ * kLn2); }
  int64_t row(int32_t column) const { return rows_[column]; }
  int64_t columns() const { return end_; }

  // Whether dropout keeps a key of a query.
  bool keeps(int64_t lane, int32_t column) const { return kept_[column] >> lane & 1; }

  // Lists the keys whose scores are not below least(lane, largest score so far), nor
  // hidden. largest[lane] becomes the largest of all.
  template <class Least>
  void collect(const QueryTile& queries, Number* largest, const Least& least) {
    const auto scale = static_cast<Number>(task_.scale * kLog2E);
    transpose_in(queries.in(task_.queries.q, task_.queries.stride), task_.width, scale,
                 transposed_);
    std::memset(zeros_, 0, task_.width * sizeof(Number));
    for (int64_t lane = 0; lane < kTile; ++lane)
      largest[lane] = -static_cast<Number>(__builtin_inf());
    each_lane(queries, [&](int64_t lane) {
      lists_[lane] = {numbers_ + at(lane, room_), columns_ + at(lane, room_), 0};
    });
    end_ = 0;
    Keep keep(task_.dropout, queries, task_.source.number);
    const bool biased = has_bias(task_.source.bias);
    if (biased) bias_.start(task_.source.bias, transposed_, scale);
    each_batch(queries, task_.source, task_.visits, task_.visit_count, zeros_,
               /*waste_place=*/0, [&](const KeyBatch<Number>& batch) {
                 const Number* const bias = biased
                                                ? bias_.of(queries, batch, task_.source,
                                                           [](int64_t, int64_t) {})
                                                : nullptr;
                 if (!batch.masked && task_.lanes == kTile)
                   score_lanes<kWide>(queries, batch, bias, largest);
                 else
                   score_lanes<kNarrow>(queries, batch, bias, largest);
                 keep_rows(batch, keep);
                 list(queries, batch, largest, least);
               });
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;
  // Only a hidden score is below it.
  static constexpr Number kLowest = sizeof(Number) == sizeof(float)
                                        ? static_cast<Number>(-__FLT_MAX__)
                                        : static_cast<Number>(-__DBL_MAX__);

  template <int vectors>
  void score_lanes(const QueryTile& queries, const KeyBatch<Number>& batch,
                   const Number* bias, Number* largest) {
    constexpr int kGroup = vectors * kLanes, kRows = rows_of_block(vectors);
    for (int64_t lane = task_.first / kGroup * kGroup; lane < queries.lanes;
         lane += kGroup) {
      const KeyRange keys = seen_keys(batch, lane, kGroup, kRows);
      Vector<Number> most[vectors];
      for (int j = 0; j < vectors; ++j) most[j] = load(largest + lane + j * kLanes);
      for (int64_t key = 0; key < kTile; key += kRows) {
        if (key >= keys.from && key < keys.to)
          score<vectors>(batch, bias, lane, key, most);
        else
          hide<vectors>(lane, key);
      }
      for (int j = 0; j < vectors; ++j) store(most[j], largest + lane + j * kLanes);
    }
  }

  template <int vectors>
  void hide(int64_t lane, int64_t key) {
    for (int i = 0; i < rows_of_block(vectors); ++i)
      for (int j = 0; j < vectors; ++j)
        store(broadcast(-static_cast<Number>(__builtin_inf())),
              scores_ + (key + i) * kTile + lane + j * kLanes);
  }

  // A function of its own, so that its sums have the registers to themselves.
  template <int vectors>
  [[gnu::noinline]] void score(const KeyBatch<Number>& batch, const Number* bias,
                               int64_t lane, int64_t key,
                               Vector<Number> (&most)[vectors]) {
    Block<Number, rows_of_block(vectors), vectors> sums;
    sums.clear();
    const Number* const* const k = batch.k + key;
    const Number* const queries = transposed_ + lane;
    Number* const scores = scores_ + key * kTile + lane;
    sums.add_products([&](int i, int64_t x) { return k[i][x]; },
                      [&](int64_t x) { return queries + x * kTile; }, 0, task_.width);
    if (bias)
      sums.each([&](int i, int j, Vector<Number>& sum) {
        sum += load(bias + (key + i) * kTile + lane + j * kLanes);
      });
    if (batch.masked)
      sums.each([&](int i, int j, Vector<Number>& sum) {
        sum = select(batch.bits[key + i] >> (lane + j * kLanes), sum,
                     broadcast(-static_cast<Number>(__builtin_inf())));
      });
    sums.each([&](int i, int j, const Vector<Number>& sum) {
      most[j] = larger(most[j], sum);
      store(sum, scores + i * kTile + j * kLanes);
    });
  }

  void keep_rows(const KeyBatch<Number>& batch, Keep& keep) {
    std::memcpy(rows_ + end_, batch.row, batch.count * sizeof(int32_t));
    for (int64_t i = 0; i < batch.count && !keep.all(); ++i)
      kept_[end_ + i] = keep.bits(batch.row[i]);
  }

  template <class Least>
  void list(const QueryTile& queries, const KeyBatch<Number>& batch,
            const Number* largest, const Least& least) {
    const int64_t keys = parts_of(batch.count, kLanes) * kLanes;
    const int64_t first = task_.first / kLanes * kLanes;
    transpose<Number>({scores_ + first, kTile}, keys, queries.lanes - first,
                      turned_ + first * kTile, kTile);
    int32_t columns[kTile];
    for (int i = 0; i < kTile; ++i) columns[i] = static_cast<int32_t>(end_) + i;
    each_lane(queries, [&](int64_t lane) {
      KeyList<Number>& list = lists_[lane];
      const Number asked = least(lane, largest[lane]);
      const Number limit = asked < kLowest ? kLowest : asked;
      const Number* const from = turned_ + lane * kTile;
      for (int64_t i = 0; i < keys; i += kLanes) {
        const Vector<Number> x = load(from + i);
        if (const uint64_t bits = not_below(x, limit))
          list.count += pack(bits, x, columns + i, list.numbers + list.count,
                             list.columns + list.count);
      }
    });
    end_ += batch.count;
  }

  const EntmaxTask<Number>& task_;
  double e_;
  int64_t room_;
  Number* transposed_;  // [width, 64]: queries times scale * log2(e)
  Number* scores_;      // [keys of a batch, 64]
  Number* turned_;      // [64, keys of a batch]
  Number* numbers_;     // [lanes, room]
  int32_t* columns_;    // [lanes, room]
  int32_t* rows_;       // [columns]: of k
  uint64_t* kept_;      // [columns]: by dropout, a bit for each query
  Number* zeros_;
  int64_t end_ = 0;  // of the columns so far
  KeyList<Number> lists_[kTile];
  BatchBias<Number> bias_;
};

// work(curve) with the curve of a task.
template <class Number, class Work>
void with_curve(double alpha, const Work& work) {
  if (alpha == 2) return work(Linear<Number>());
  if (alpha == 1.5) return work(Square<Number>());
  work(Power<Number>{static_cast<Number>(1 / (alpha - 1))});
}

// Keys whose rows are gone through together, so that they stay in the cache.
constexpr int64_t kKeysAtOnce = 64;

// Goes through the lists of all queries together, some keys at a time: work(lane, from,
// to) for what a list has of them.
template <class Number, class Work>
void through(EntmaxTile<Number>& tile, const QueryTile& queries, const Work& work) {
  int64_t next[kTile] = {};
  for (int64_t end = kKeysAtOnce; end < tile.columns() + kKeysAtOnce;
       end += kKeysAtOnce)
    tile.each_lane(queries, [&](int64_t lane) {
      const KeyList<Number>& list = tile.list(lane);
      const int64_t from = next[lane];
      int64_t to = from;
      while (to < list.count && list.columns[to] < end) ++to;
      next[lane] = to;
      if (from < to) work(lane, from, to);
    });
}

template <class Number>
class EntmaxForward {
 public:
  EntmaxForward(const EntmaxTask<Number>& task, Scratch& scratch)
      : task_(task),
        value_width_(padded(task.value_width)),
        out_(scratch.take<Number>(task.lanes * value_width_)),
        weights_(scratch.take<Number>(task.most_keys + kPadding)),
        near_(scratch.take<Number>(task.most_keys + kPadding)),
        near_columns_(scratch.take<int32_t>(task.most_keys + kPadding)),
        tile_(task, scratch) {}

  void run() {
    const QueryTile queries = tile_.queries();
    if (queries.live == 0) return;
    Number largest[kTile], shares[kTile];
    const Number within = 1 / tile_.unit();
    tile_.collect(queries, largest,
                  [&](int64_t, Number most) { return most - within; });
    with_curve<Number>(task_.alpha, [&](const auto& curve) {
      tile_.each_lane(queries, [&](int64_t lane) {
        shares[lane] = weigh_row(queries, lane, largest[lane], curve);
      });
    });
    std::memset(out_, 0, task_.lanes * value_width_ * sizeof(Number));
    const auto value = [&](int64_t from) {
      return [&, from](int32_t column) {
        return task_.source.v + tile_.row(column) * task_.source.v_stride + from;
      };
    };
    through(tile_, queries, [&](int64_t lane, int64_t first, int64_t end) {
      const KeyList<Number>& list = tile_.list(lane);
      each_part<Number>(value_width_, [&]<int vectors>(int64_t from) {
        add_rows<vectors>(list.numbers + first, list.columns + first, end - first,
                          value(from), out_ + tile_.at(lane, value_width_) + from);
      });
    });
    tile_.each_lane(queries, [&](int64_t lane) {
      const Number* const from = out_ + tile_.at(lane, value_width_);
      Number* const to = task_.out + queries.row[lane] * task_.out_stride;
      for (int64_t x = 0; x < task_.value_width; ++x) to[x] = shares[lane] * from[x];
    });
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;

  // Makes the scores of a list weights, after dropout, and returns what they are to be
  // multiplied by. Not a number where a score is none.
  template <class Curve>
  Number weigh_row(const QueryTile& queries, int64_t lane, Number largest,
                   const Curve& curve) {
    constexpr auto kInfinity = static_cast<Number>(__builtin_inf());
    KeyList<Number>& list = tile_.list(lane);
    Number* const level = task_.levels + 2 * queries.row[lane];
    const bool is_number = to_gaps(list, largest) && largest < kInfinity;
    if (!is_number || list.count == 0) {
      list.count = 0;
      level[0] = is_number ? -kInfinity : static_cast<Number>(__builtin_nan(""));
      level[1] = 0;
      return is_number ? 0 : level[0];
    }
    const Level found = solve(list, start(list, curve), tile_.e(), curve, weights_);
    level[0] = largest;
    level[1] = static_cast<Number>(found.reach);
    std::memcpy(list.numbers, weights_, list.count * sizeof(Number));
    if (task_.dropout.limit == 0) return static_cast<Number>(1 / found.sum);
    for (int64_t i = 0; i < list.count; ++i)
      if (!tile_.keeps(lane, list.columns[i])) list.numbers[i] = 0;
    return static_cast<Number>(task_.dropout.factor / found.sum);
  }

  // Makes the scores of a list gaps, all below 1. False if one is not a number.
  bool to_gaps(KeyList<Number>& list, Number largest) {
    list.close(-static_cast<Number>(__builtin_inf()));
    const Number unit = tile_.unit();
    int64_t kept = 0;
    uint64_t strange = 0;
    for (int64_t i = 0; i < list.count; i += kLanes) {
      const Vector<Number> u = 1 - (largest - load(list.numbers + i)) * unit;
      const uint64_t bits = above(u, Number{0});
      strange |= above(u, static_cast<Number>(__builtin_inf()));
      kept += pack(bits, (largest - load(list.numbers + i)) * unit, list.columns + i,
                   list.numbers + kept, list.columns + kept);
    }
    list.count = kept;
    list.close(2);
    return strange == 0;
  }

  // A reach from which to start: that of the nearer keys alone, which fewer cannot
  // fall short of.
  template <class Curve>
  Number start(const KeyList<Number>& list, const Curve& curve) {
    constexpr int64_t kWorthIt = 8 * kLanes;
    if (list.count < kWorthIt) return 1;
    KeyList<Number> near{near_, near_columns_, 0};
    for (int64_t i = 0; i < list.count; i += kLanes) {
      const Vector<Number> gap = load(list.numbers + i);
      if (const uint64_t bits = above(Number{0.5} - gap, Number{0}))
        near.count += pack(bits, gap, list.columns + i, near.numbers + near.count,
                           near.columns + near.count);
    }
    if (2 * near.count > list.count) return 1;
    near.close(2);
    return static_cast<Number>(
        solve(near, Number{1}, tile_.e(), curve, weights_).reach);
  }

  const EntmaxTask<Number>& task_;
  int64_t value_width_;    // padded
  Number* out_;            // [lanes, padded value width]
  Number* weights_;        // of one list
  Number* near_;           // part of one list
  int32_t* near_columns_;  // its columns
  EntmaxTile<Number> tile_;
};

template <class Number>
class EntmaxBackward {
 public:
  EntmaxBackward(const EntmaxGradientTask<Number>& task, Scratch& scratch)
      : task_(task),
        forward_(task.forward),
        width_(padded(forward_.width)),
        value_width_(padded(forward_.value_width)),
        query_rows_(scratch.take<Number>(forward_.lanes * width_)),
        query_slopes_(scratch.take<Number>(forward_.lanes * width_)),
        slope_rows_(scratch.take<Number>(forward_.lanes * value_width_)),
        tile_(forward_, scratch),
        curves_(scratch.take<Number>(forward_.lanes * tile_.room())),
        slopes_(scratch.take<Number>(forward_.lanes * tile_.room())),
        factors_(scratch.take<Number>(kKeysAtOnce)) {}

  void run() {
    const QueryTile queries = tile_.queries();
    if (queries.live == 0) return;
    Number largest[kTile];
    tile_.collect(queries, largest, [&](int64_t lane, Number) {
      return least_score(forward_.levels + 2 * queries.row[lane]);
    });
    copy_rows(queries, forward_.queries.q, forward_.queries.stride, forward_.width,
              width_, query_rows_);
    copy_rows(queries, task_.out_slope, task_.out_slope_stride, forward_.value_width,
              value_width_, slope_rows_);
    with_curve<Number>(forward_.alpha, [&](const auto& curve) {
      tile_.each_lane(queries, [&](int64_t lane) {
        weigh_row(forward_.levels + 2 * queries.row[lane], lane, curve);
      });
    });
    through(tile_, queries, [&](int64_t lane, int64_t from, int64_t to) {
      take_values(lane, from, to);
    });
    tile_.each_lane(queries, [&](int64_t lane) { finish_slopes(lane); });
    std::memset(query_slopes_, 0, forward_.lanes * width_ * sizeof(Number));
    through(tile_, queries,
            [&](int64_t lane, int64_t from, int64_t to) { take_keys(lane, from, to); });
    tile_.each_lane(queries, [&](int64_t lane) { write(queries, lane); });
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;

  // What has a weight is above it, and perhaps a little below, for rounding.
  Number least_score(const Number* level) const {
    return level[0] - level[1] / tile_.unit() * static_cast<Number>(1.0001);
  }

  // Rows of the queries asked for, with zeros at their ends.
  void copy_rows(const QueryTile& queries, const Number* from, int64_t stride,
                 int64_t width, int64_t padded_width, Number* to) {
    std::memset(to, 0, forward_.lanes * padded_width * sizeof(Number));
    tile_.each_lane(queries, [&](int64_t lane) {
      std::memcpy(to + tile_.at(lane, padded_width), from + queries.row[lane] * stride,
                  width * sizeof(Number));
    });
  }

  Number* curves(int64_t lane) { return curves_ + tile_.at(lane, tile_.room()); }
  Number* slopes(int64_t lane) { return slopes_ + tile_.at(lane, tile_.room()); }

  // The list gets u = reach - gap of what has a weight, curves() gets g = u^(1/e - 1);
  // the weight is u g, over the sum of all.
  template <class Curve>
  void weigh_row(const Number* level, int64_t lane, const Curve& curve) {
    KeyList<Number>& list = tile_.list(lane);
    list.close(-static_cast<Number>(__builtin_inf()));
    if (!(level[1] > 0)) list.count = 0;
    LongSum<Number> weight_sum, slope_sum;
    Number* const all = curves(lane);
    const Number unit = tile_.unit();
    int64_t kept = 0;
    along<Number>(
        list.count,
        [&](int64_t i) {
          const Vector<Number> u =
              level[1] - (level[0] - load(list.numbers + i)) * unit;
          Vector<Number> weight, slope;
          curve(u, weight, slope);
          weight_sum.add(weight);
          slope_sum.add(slope);
          const uint64_t bits = above(u, Number{0});
          int32_t unused[kLanesOf<float>];
          pack(bits, slope, list.columns + i, all + kept, unused);
          kept +=
              pack(bits, u, list.columns + i, list.numbers + kept, list.columns + kept);
        },
        [&] {
          weight_sum.settle();
          slope_sum.settle();
        });
    list.count = kept;
    list.close(1);
    for (int64_t i = kept; i < kept + kLanes; ++i) all[i] = 0;
    sums_[lane] = {weight_sum.total(), slope_sum.total()};
    std::memset(slopes(lane), 0, (kept + kLanes) * sizeof(Number));
  }

  // Slopes of weights, and the weights' part in the slopes of values.
  void take_values(int64_t lane, int64_t from, int64_t to) {
    const KeyList<Number>& list = tile_.list(lane);
    const int32_t* const columns = list.columns + from;
    const int64_t count = to - from;
    Number* const products = slopes(lane) + from;
    const Number* const out_slope = slope_rows_ + tile_.at(lane, value_width_);
    const auto share =
        static_cast<Number>(forward_.dropout.factor / sums_[lane].weights);
    for (int64_t i = 0; i < count; ++i)
      factors_[i] = share * list.numbers[from + i] * curves(lane)[from + i];
    each_part<Number>(value_width_, [&]<int vectors>(int64_t column) {
      add_dots<vectors>(
          columns, count, out_slope + column,
          [&](int32_t key) {
            return forward_.source.v + tile_.row(key) * forward_.source.v_stride +
                   column;
          },
          products);
    });
    if (forward_.dropout.limit != 0) {
      const auto factor = static_cast<Number>(forward_.dropout.factor);
      for (int64_t i = 0; i < count; ++i) {
        const bool stays = tile_.keeps(lane, columns[i]);
        factors_[i] = stays ? factors_[i] : 0;
        products[i] = stays ? factor * products[i] : 0;
      }
    }
    each_part<Number>(value_width_, [&]<int vectors>(int64_t column) {
      add_to_rows<vectors>(static_cast<const Number*>(factors_), columns, count,
                           out_slope + column, [&](int32_t key) {
                             return task_.v + tile_.row(key) * value_width_ + column;
                           });
    });
  }

  // Makes the slopes of weights those of scores: g (slope - mean of the slopes under
  // g).
  void finish_slopes(int64_t lane) {
    const KeyList<Number>& list = tile_.list(lane);
    if (list.count == 0) return;
    if (task_.alpha) *task_.alpha += alpha_slope(lane);
    Number *const all = slopes(lane), *const g = curves(lane);
    LongSum<Number> sum;
    along<Number>(
        list.count, [&](int64_t i) { sum.add(load(g + i) * load(all + i)); },
        [&] { sum.settle(); });
    const auto mean = static_cast<Number>(sum.total() / sums_[lane].slopes);
    for (int64_t i = 0; i < list.count; i += kLanes)
      store(load(g + i) * (load(all + i) - mean), all + i);
    if (!task_.scores) return;
    for (int64_t i = 0; i < list.count; ++i)
      task_.scores[lane * task_.scores_stride + tile_.row(list.columns[i])] = all[i];
  }

  // With p the weights, L = ln p, c = (1 - u) / u, and sums over keys,
  //   sum of slope p ((C - c) / ((1 + C) e^2) - (L - (1 + c) / (1 + C) E) / e),
  // where C = sum of p c and E = sum of p L.
  double alpha_slope(int64_t lane) {
    const KeyList<Number>& list = tile_.list(lane);
    const Number *const g = curves(lane), *const slope = slopes(lane);
    const auto exponent = static_cast<Number>(1 / tile_.e());
    Doubles sums[5] = {};
    for (int64_t i = 0; i < list.count; i += kLanes) {
      const Vector<Number> u = load(list.numbers + i), d = load(slope + i);
      const Vector<Number> weight = u * load(g + i), rest = (1 - u) * load(g + i);
      const Vector<Number> entropy = weight * (log(u) * exponent);
      add(rest, sums[0]);
      add(entropy, sums[1]);
      add(d * weight, sums[2]);
      add(d * rest, sums[3]);
      add(d * entropy, sums[4]);
    }
    const double share = 1 / sums_[lane].weights, e = tile_.e();
    const double c = share * sum_in_double(sums[0]), l = share * sum_in_double(sums[1]);
    const double d = share * sum_in_double(sums[2]),
                 dc = share * sum_in_double(sums[3]),
                 dl = share * sum_in_double(sums[4]);
    return (c * d - dc) / ((1 + c) * e * e) - (dl - (d + dc) / (1 + c) * l) / e;
  }

  static void add(const Floats& x, Doubles& sum) {
    sum += in_double(x, 0) + in_double(x, 1);
  }
  static void add(const Doubles& x, Doubles& sum) { sum += x; }

  void take_keys(int64_t lane, int64_t from, int64_t to) {
    const KeyList<Number>& list = tile_.list(lane);
    const int32_t* const columns = list.columns + from;
    const Number* const factors = slopes(lane) + from;
    const Number* const query = query_rows_ + tile_.at(lane, width_);
    Number* const query_slope = query_slopes_ + tile_.at(lane, width_);
    each_part<Number>(width_, [&]<int vectors>(int64_t column) {
      add_rows<vectors>(
          factors, columns, to - from,
          [&](int32_t key) {
            return forward_.source.k + tile_.row(key) * forward_.source.k_stride +
                   column;
          },
          query_slope + column);
      add_to_rows<vectors>(
          factors, columns, to - from, query + column,
          [&](int32_t key) { return task_.k + tile_.row(key) * width_ + column; });
    });
  }

  void write(const QueryTile& queries, int64_t lane) {
    const int64_t row = queries.row[lane];
    const Number* const from = query_slopes_ + tile_.at(lane, width_);
    Number* const to = task_.q + row * task_.q_stride;
    // Not a number where the scores are none.
    const Number largest = forward_.levels[2 * row];
    const Number scale =
        largest == largest ? static_cast<Number>(forward_.scale) : largest;
    for (int64_t x = 0; x < forward_.width; ++x) to[x] = scale * from[x];
  }

  const EntmaxGradientTask<Number>& task_;
  const EntmaxTask<Number>& forward_;
  int64_t width_, value_width_;  // padded
  Number* query_rows_;           // [lanes, padded width]
  Number* query_slopes_;         // [lanes, padded width]: without the scale
  Number* slope_rows_;           // [lanes, padded value width]: of out
  EntmaxTile<Number> tile_;
  Number* curves_;  // [lanes, room]
  Number* slopes_;  // [lanes, room]: of weights, then of scores
  Number* factors_;
  Sums sums_[kTile];  // of weights, and of curves
};

template <class Number>
int64_t bytes(const EntmaxTask<Number>& task) {
  Scratch forward(nullptr), backward(nullptr);
  const EntmaxGradientTask<Number> gradient{.forward = task};
  EntmaxForward<Number>(task, forward);
  EntmaxBackward<Number>(gradient, backward);
  return forward.bytes() > backward.bytes() ? forward.bytes() : backward.bytes();
}

template <class Number>
void run(const EntmaxTask<Number>& task) {
  Scratch scratch(task.scratch);
  EntmaxForward<Number>(task, scratch).run();
}

template <class Number>
void run(const EntmaxGradientTask<Number>& task) {
  Scratch scratch(task.forward.scratch);
  EntmaxBackward<Number>(task, scratch).run();
}

}  // namespace

int64_t entmax_bytes(const EntmaxTask<float>& task) { return bytes(task); }
int64_t entmax_bytes(const EntmaxTask<double>& task) { return bytes(task); }
void entmax(const EntmaxTask<float>& task) { run(task); }
void entmax(const EntmaxTask<double>& task) { run(task); }
void entmax_gradient(const EntmaxGradientTask<float>& task) { run(task); }
void entmax_gradient(const EntmaxGradientTask<double>& task) { run(task); }

}  // namespace longspan::cpu::LONGSPAN_ISA
