#include "longspan/kernels/cpu/attend_tile.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// In the type that is stored.
template <class Number_>
class PlainArithmetic {
 public:
  using Number = Number_;
  using Stored = Number;

  PlainArithmetic(const AttendTask<Number>& task, Scratch& scratch)
      : task_(task),
        queries_(scratch.take<Number>(task.width * kTile)),
        scores_(scratch.take<Number>(kTile * kTile)) {}

  void take_queries(const QueryTile& queries, Number scale) {
    transpose_in(queries.in(task_.queries.q, task_.queries.stride), task_.width, scale,
                 queries_);
  }

  const Number* scaled_queries() const { return queries_; }

  void take_values(const KeyBatch<Number>&) {}

  // Scores of some keys, and the largest so far. A function of its own, so that its
  // sums have the registers to themselves.
  template <int vectors>
  [[gnu::noinline]] void score(const KeyBatch<Number>& batch, const Number* bias,
                               int64_t lane, int64_t key,
                               Vector<Number> (&most)[vectors]) {
    constexpr int kRows = rows_of_block(vectors);
    Block<Number, kRows, vectors> sums;
    sums.clear();
    const Number* const* const k = batch.k + key;
    const Number* const queries = queries_ + lane;
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
                     broadcast(kNothing<Number>));
      });
    sums.each([&](int i, int j, const Vector<Number>& sum) {
      most[j] = larger(most[j], sum);
      store(sum, scores + i * kTile + j * kLanes);
    });
  }

  // Makes the scores weights, and adds these up.
  template <int vectors>
  void weigh(const uint64_t* kept, int64_t lane, const KeyRange& keys,
             const Vector<Number> (&shift)[vectors], Vector<Number> (&sum)[vectors]) {
    const auto factor = static_cast<Number>(task_.dropout.factor);
    for (int64_t key = keys.from; key < keys.to; ++key) {
      Number* const scores = scores_ + key * kTile + lane;
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        Vector<Number> weight = exp2(load(scores + j * kLanes) - shift[j]);
        sum[j] += weight;
        if (kept)
          weight = select(kept[key] >> (lane + j * kLanes), weight * factor,
                          Vector<Number>{});
        store(weight, scores + j * kLanes);
      }
    }
  }

  // The weighted sums of some columns of the values.
  template <int rows, int vectors>
  void add_values(Block<Number, rows, vectors>& sums, const KeyBatch<Number>& batch,
                  int64_t lane, const KeyRange& keys, int64_t column) {
    const Number* const weights = scores_ + lane;
    sums.add_products([&](int i, int64_t key) { return batch.v[key][column + i]; },
                      [&](int64_t key) { return weights + key * kTile; }, keys.from,
                      keys.to);
  }

  static void put(const Number* from, int64_t width, const Number* factors,
                  const QueryTile& queries, Number* out, int64_t stride) {
    transpose_out(from, width, factors, queries.in(out, stride));
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;

  const AttendTask<Number>& task_;
  Number* queries_;  // [width, 64]: times scale * log2(e)
  Number* scores_;   // [keys, 64]: then weights
};

}  // namespace

int64_t attend_bytes(const AttendTask<float>& task) {
  return bytes_by<PlainArithmetic<float>>(task);
}
int64_t attend_bytes(const AttendTask<double>& task) {
  return bytes_by<PlainArithmetic<double>>(task);
}
void attend(const AttendTask<float>& task) { attend_by<PlainArithmetic<float>>(task); }
void attend(const AttendTask<double>& task) {
  attend_by<PlainArithmetic<double>>(task);
}

}  // namespace longspan::cpu::LONGSPAN_ISA
