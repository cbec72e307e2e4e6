// Block-sparse attention forward: one tile of queries, all its keys; see vec.h for who
// may include this.

#pragma once

#include "longspan/kernels/cpu/attention_bias.h"
#include "longspan/kernels/cpu/vec_math.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

inline float log_of(float x) { return __builtin_logf(x); }
inline double log_of(double x) { return __builtin_log(x); }

template <class Number>
constexpr Number kNothing = -static_cast<Number>(__builtin_inf());

// How the scores and weights of a batch lie in memory, and how they are multiplied, is
// the arithmetic's: see PlainArithmetic.
template <class Arithmetic>
class TileAttention {
  using Number = typename Arithmetic::Number;
  using Stored = typename Arithmetic::Stored;
  using Task = AttendTask<Number, Stored>;
  using Batch = KeyBatch<Stored>;

 public:
  TileAttention(const Task& task, Scratch& scratch)
      : task_(task),
        out_(scratch.take<Number>(task.value_width * kTile)),
        most_(scratch.take<Number>(kTile)),
        sum_(scratch.take<Number>(kTile)),
        zeros_(scratch.take<Stored>(widest())),
        bias_(scratch, task.width, /*with_slopes=*/false),
        arithmetic_(task, scratch) {}

  void run() {
    const QueryTile queries(task_.queries, task_.tile);
    const auto scale = static_cast<Number>(task_.scale * kLog2E);
    arithmetic_.take_queries(queries, scale);
    std::memset(out_, 0, task_.value_width * kTile * sizeof(Number));
    std::memset(sum_, 0, kTile * sizeof(Number));
    std::memset(zeros_, 0, widest() * sizeof(Stored));
    for (int64_t lane = 0; lane < kTile; ++lane) most_[lane] = kNothing<Number>;

    const Visit* visits = task_.visits;
    for (int64_t s = 0; s < task_.source_count; ++s) {
      const HeadSource<Number, Stored>& source = task_.sources[s];
      Keep keep(task_.dropout, queries, source.number);
      const bool biased = has_bias(source.bias);
      if (biased) bias_.start(source.bias, arithmetic_.scaled_queries(), scale);
      each_batch(queries, source, visits, task_.visit_counts[s], zeros_,
                 /*waste_place=*/0, [&](const Batch& batch) {
                   const Number* const bias = biased ? bias_.of(queries, batch, source,
                                                                [](int64_t, int64_t) {})
                                                     : nullptr;
                   add(queries, batch, bias, keep);
                 });
      visits += task_.visit_counts[s];
    }
    write(queries);
  }

 private:
  static constexpr int kLanes = kLanesOf<Number>;

  int64_t widest() const {
    return task_.width > task_.value_width ? task_.width : task_.value_width;
  }

  void add(const QueryTile& queries, const Batch& batch, const Number* bias,
           Keep& keep) {
    KeptPairs kept(batch, keep);
    arithmetic_.take_values(batch);
    if (!batch.masked && queries.lanes > kTile - kNarrow * kLanes)
      add_lanes<kWide>(queries, batch, bias, kept.bits());
    else
      add_lanes<kNarrow>(queries, batch, bias, kept.bits());
  }

  template <int vectors>
  void add_lanes(const QueryTile& queries, const Batch& batch, const Number* bias,
                 const uint64_t* kept) {
    constexpr int kGroup = vectors * kLanes, kRows = rows_of_block(vectors);
    for (int64_t lane = 0; lane < queries.lanes; lane += kGroup) {
      const KeyRange keys = seen_keys(batch, lane, kGroup, kRows);
      if (keys.from < keys.to) add_group<vectors>(batch, bias, kept, lane, keys);
    }
  }

  template <int vectors>
  void add_group(const Batch& batch, const Number* bias, const uint64_t* kept,
                 int64_t lane, const KeyRange& keys) {
    Vector<Number> before[vectors], most[vectors];
    for (int j = 0; j < vectors; ++j)
      before[j] = most[j] = load(most_ + lane + j * kLanes);
    for (int64_t key = keys.from; key < keys.to; key += rows_of_block(vectors))
      arithmetic_.template score<vectors>(batch, bias, lane, key, most);

    Vector<Number> shift[vectors], grown[vectors], sum[vectors];
    for (int j = 0; j < vectors; ++j) {
      shift[j] = most[j] == broadcast(kNothing<Number>) ? Vector<Number>{} : most[j];
      grown[j] = exp2(before[j] - shift[j]);
      sum[j] = Vector<Number>{};
      store(most[j], most_ + lane + j * kLanes);
    }
    arithmetic_.template weigh<vectors>(kept, lane, keys, shift, sum);
    for (int j = 0; j < vectors; ++j) {
      Number* const to = sum_ + lane + j * kLanes;
      store(load(to) * grown[j] + sum[j], to);
    }

    constexpr int kRows = rows_of_block(vectors);
    int64_t column = 0;
    for (; column + kRows <= task_.value_width; column += kRows)
      add_values<kRows>(batch, lane, keys, grown, column);
    for (; column < task_.value_width; ++column)
      add_values<1>(batch, lane, keys, grown, column);
  }

  template <int rows, int vectors>
  [[gnu::always_inline]] void add_values(const Batch& batch, int64_t lane,
                                         const KeyRange& keys,
                                         const Vector<Number> (&grown)[vectors],
                                         int64_t column) {
    Block<Number, rows, vectors> sums;
    sums.clear();
    arithmetic_.add_values(sums, batch, lane, keys, column);
    Number* const out = out_ + column * kTile + lane;
    sums.each([&](int i, int j, const Vector<Number>& sum) {
      Number* const to = out + i * kTile + j * kLanes;
      store(load(to) * grown[j] + sum, to);
    });
  }

  void write(const QueryTile& queries) {
    Number shares[kTile];
    for (int64_t lane = 0; lane < kTile; ++lane) {
      const Number sum = sum_[lane];
      // Not "more than 0": what is not a number must stay so.
      shares[lane] = sum == 0 ? 0 : 1 / sum;
      if (!queries.has(lane)) continue;
      Number* const lse =
          task_.part_lse ? task_.part_lse + lane : task_.lse + queries.row[lane];
      *lse = sum == 0 ? kNothing<Number>
                      : most_[lane] * static_cast<Number>(kLn2) + log_of(sum);
    }
    if (task_.part_out)
      transpose_out(out_, task_.value_width, shares, [&](int64_t lane) {
        return queries.has(lane) ? task_.part_out + lane * task_.value_width : nullptr;
      });
    else
      Arithmetic::put(out_, task_.value_width, shares, queries, task_.out,
                      task_.out_stride);
  }

  const Task& task_;
  Number* out_;   // [value width, 64]: not yet divided by sum_
  Number* most_;  // [64]: the largest score so far
  Number* sum_;   // [64]: of exp2(score - most_)
  Stored* zeros_;
  BatchBias<Number> bias_;
  Arithmetic arithmetic_;
};

template <class Arithmetic, class Task>
void attend_by(const Task& task) {
  Scratch scratch(task.scratch);
  TileAttention<Arithmetic>(task, scratch).run();
}

template <class Arithmetic, class Task>
int64_t bytes_by(const Task& task) {
  Scratch scratch(nullptr);
  TileAttention<Arithmetic>(task, scratch);
  return scratch.bytes();
}

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
