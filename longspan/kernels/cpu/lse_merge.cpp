#include "longspan/kernels/cpu/lse_merge.h"

#include "longspan/kernels/cpu/vec_any.h"
#include "longspan/kernels/cpu/vec_math.h"
#include "longspan/kernels/cpu/vec_sums.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

constexpr double kInfinity = __builtin_inf();

// The share of every part in every row, [part_count, rows] of rows.weights; 0 all over
// a row of which no part has anything. `lse` may be null for not wanted.
template <class Rows, class Number>
void weigh(const Rows& rows, Number* lse) {
  constexpr auto kEmpty = static_cast<Number>(-kInfinity);
  for (int64_t row = 0; row < rows.rows; row += kLanesOf<Number>) {
    const int64_t count = rows.rows - row;
    Vector<Number> largest = broadcast(kEmpty);
    for (int64_t part = 0; part < rows.part_count; ++part) {
      const auto x = load(rows.parts[part].lse + row, count);
      largest = x > largest ? x : largest;
    }
    const Vector<Number> base = largest > kEmpty ? largest : Vector<Number>{};
    Vector<Number> total{};
    for (int64_t part = 0; part < rows.part_count; ++part) {
      const auto x = load(rows.parts[part].lse + row, count);
      const Vector<Number> weight = exp(x - base);
      total += weight;
      store(weight, rows.weights + part * rows.rows + row, count);
    }
    const auto empty = total == 0;
    const Vector<Number> divisor = empty ? broadcast(Number{1}) : total;
    for (int64_t part = 0; part < rows.part_count; ++part) {
      Number* const weight = rows.weights + part * rows.rows + row;
      store(load(weight, count) / divisor, weight, count);
    }
    if (lse) {
      const Vector<Number> all = base + log(divisor);
      store(empty ? broadcast(kEmpty) : all, lse + row, count);
    }
  }
}

// `vectors` vectors of a merged row from column `from` on, of `count` numbers each
// where that is less than they have.
template <int vectors, bool past_caches, class Number>
[[gnu::always_inline]] inline void merge_columns(const LseMergeRows<Number>& rows,
                                                 int64_t row, int64_t from,
                                                 int64_t count) {
  Vector<Number> sums[vectors] = {};
  for (int64_t part = 0; part < rows.part_count; ++part) {
    const Number weight = rows.weights[part * rows.rows + row];
    // Without weight no value counts, not even one that is not finite.
    if (weight == 0) continue;
    const Number* const x =
        rows.parts[part].out + row * rows.parts[part].out_stride + from;
    for (int i = 0; i < vectors; ++i)
      sums[i] += weight * load(x + i * kLanesOf<Number>, count);
  }
  Number* const out = rows.out + row * rows.width + from;
  for (int i = 0; i < vectors; ++i) {
    if constexpr (past_caches)
      store_past_caches(sums[i], out + i * kLanesOf<Number>);
    else
      store(sums[i], out + i * kLanesOf<Number>, count);
  }
}

template <bool past_caches, class Number>
void merge_rows(const LseMergeRows<Number>& rows) {
  constexpr int kVectors = 4;
  constexpr int64_t kWhole = kLanesOf<Number>;
  for (int64_t row = 0; row < rows.rows; ++row) {
    int64_t i = 0;
    for (; i + kVectors * kWhole <= rows.width; i += kVectors * kWhole)
      merge_columns<kVectors, past_caches>(rows, row, i, kWhole);
    for (; i < rows.width; i += kWhole)
      merge_columns<1, past_caches>(rows, row, i, rows.width - i);
  }
}

template <class Number>
void merge(const LseMergeRows<Number>& rows) {
  weigh(rows, rows.lse);
  if (!rows.past_caches || !has_aligned_rows(rows.out, rows.width))
    return merge_rows<false>(rows);
  merge_rows<true>(rows);
  flush_stores();
}

template <bool past_caches, class Number>
void scale_row(const Number* from, Number factor, Number* to, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanesOf<Number>) {
    const Vector<Number> x =
        factor == 0 ? Vector<Number>{} : factor * load(from + i, width - i);
    if constexpr (past_caches)
      store_past_caches(x, to + i);
    else
      store(x, to + i, width - i);
  }
}

// With w the weights and c the slopes' dot products with the rows of the parts,
// dout of a part = w dout and dlse of a part = w (c - sum of all w c + dlse).
template <class Number>
void merge_gradient(const LseMergeGradientRows<Number>& rows) {
  weigh(rows, static_cast<Number*>(nullptr));
  bool lse_wanted = false;
  for (int64_t part = 0; part < rows.part_count; ++part)
    lse_wanted = lse_wanted || rows.gradients[part].lse;

  for (int64_t row = 0; row < rows.rows; ++row) {
    const Number* const dout = rows.dout + row * rows.dout_stride;
    double average = 0;
    for (int64_t part = 0; part < rows.part_count; ++part) {
      const auto& gradient = rows.gradients[part];
      const Number weight = rows.weights[part * rows.rows + row];
      if (gradient.out) {
        Number* const to = gradient.out + row * rows.width;
        if (rows.past_caches && has_aligned_rows(gradient.out, rows.width))
          scale_row<true>(dout, weight, to, rows.width);
        else
          scale_row<false>(dout, weight, to, rows.width);
      }
      if (!lse_wanted || weight == 0) continue;
      const Number* const out =
          rows.parts[part].out + row * rows.parts[part].out_stride;
      const auto product = static_cast<Number>(dot(dout, out, rows.width));
      average += static_cast<double>(weight) * product;
      if (gradient.lse) gradient.lse[row] = product;
    }
    for (int64_t part = 0; part < rows.part_count; ++part) {
      Number* const dlse = rows.gradients[part].lse;
      if (!dlse) continue;
      const Number weight = rows.weights[part * rows.rows + row];
      dlse[row] =
          weight == 0
              ? 0
              : static_cast<Number>(weight * (dlse[row] - average + rows.dlse[row]));
    }
  }
  if (rows.past_caches) flush_stores();
}

}  // namespace

void lse_merge(const LseMergeRows<float>& rows) { merge(rows); }
void lse_merge(const LseMergeRows<double>& rows) { merge(rows); }
void lse_merge_gradient(const LseMergeGradientRows<float>& rows) {
  merge_gradient(rows);
}
void lse_merge_gradient(const LseMergeGradientRows<double>& rows) {
  merge_gradient(rows);
}

}  // namespace longspan::cpu::LONGSPAN_ISA
