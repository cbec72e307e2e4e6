#include "longspan/kernels/cpu/linear_attention.h"

#include "longspan/kernels/cpu/vec.h"
#include "longspan/kernels/cpu/vec_linear.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

template <class Number>
class Scan {
 public:
  Scan(const LinearTokens<Number>& tokens, Number* scratch)
      : Scan(tokens.form, Scratch(scratch)) {
    tokens_ = tokens;
  }

  static int64_t scratch(const LinearForm& form) {
    return Scan(form, Scratch(nullptr)).used_;
  }

  void load_state(const LinearSums<Number>& state) {
    for (int64_t f = 0; f < features_; ++f) {
      const Number* const from = state.sums + f * (values_ + 1);
      copy(from, values_, sums_ + f * stride_);
      ones_[f] = from[values_];
      for (int64_t i = values_; i < stride_; ++i) sums_[f * stride_ + i] = 0;
      if (form_.log_features) scale_.peaks[f] = state.peaks[f];
    }
    for (int64_t f = features_; f < width_; ++f) {
      for (int64_t i = 0; i < stride_; ++i) sums_[f * stride_ + i] = 0;
      ones_[f] = 0;
      scale_.peaks[f] = static_cast<Number>(kNever);
    }
  }

  void store_state(const LinearSums<Number>& state) const {
    const auto scale = static_cast<Number>(::exp(scale_.log_scale));
    for (int64_t f = 0; f < features_; ++f) {
      Number* const to = state.sums + f * (values_ + 1);
      for (int64_t i = 0; i < values_; ++i) to[i] = sums_[f * stride_ + i] * scale;
      to[values_] = ones_[f] * scale;
      if (form_.log_features) state.peaks[f] = scale_.peaks[f];
    }
  }

  void add_keys(int64_t first) {
    const int64_t count = count_of(first, tokens_.keys);
    read_keys(first, count);
    add_keys_read(first, count);
  }

  void attend(int64_t first, const LinearResults<Number>& results) {
    const int64_t count = count_of(first, tokens_.queries);
    if (form_.causal) read_keys(first, count);
    if (form_.log_features)
      read_queries_of_logs(first, count);
    else
      read_queries(first, count);
    sum_weights();
    divide(first, count, results);
    write_rows(first, count, results.out + first * values_);
    if (form_.causal) add_keys_read(first, count);
  }

  Number largest() const { return largest_of<Number>(tops_); }

 private:
  static constexpr int kStep = kLanesOf<Number>;

  Scan(const LinearForm& form, Scratch scratch)
      : form_(form),
        features_(form.features),
        width_(padded(form.features)),
        values_(form.values),
        stride_(padded(form.values)) {
    sums_ = scratch.take<Number>(width_ * stride_);
    ones_ = scratch.take<Number>(width_);
    scale_.peaks = scratch.take<Number>(width_);
    kept_ = scratch.take<Number>(width_);
    q_rows_ = scratch.take<Number>(kChunk * width_);
    q_turned_ = scratch.take<Number>(kChunk * width_);
    k_rows_ = scratch.take<Number>(kChunk * width_);
    k_features_ = scratch.take<Number>(kChunk * width_);
    v_rows_ = scratch.take<Number>(kChunk * stride_);
    v_faded_ = scratch.take<Number>(kChunk * stride_);
    out_rows_ = scratch.take<Number>(kChunk * stride_);
    pairs_ = scratch.take<Number>(kChunk * kChunk);
    used_ = scratch.bytes() / static_cast<int64_t>(sizeof(Number));
  }

  static int64_t count_of(int64_t first, int64_t all) {
    return all - first < kChunk ? all - first : kChunk;
  }

  // Keys of weight 0 are read as if they were not there.
  void read_keys(int64_t first, int64_t count) {
    const Number* const weights = tokens_.weights ? tokens_.weights + first : nullptr;
    k_ = {tokens_.k + first * tokens_.k_stride, tokens_.k_stride};
    v_ = {tokens_.v + first * tokens_.v_stride, tokens_.v_stride};
    decays_ = decays_of(tokens_.log_decay ? tokens_.log_decay + first : nullptr, count);
    if (weights || !is_packed(count, values_)) {
      pack(v_, count, values_, weights, Number{0}, v_rows_, stride_);
      v_ = {v_rows_, stride_};
    }
    if (form_.log_features) {
      pack(k_, count, features_, weights, static_cast<Number>(kNever), k_rows_, width_);
      k_ = {k_rows_, width_};
      for (int64_t j = 0; j < count; ++j) {
        weight_[j] = weights ? weights[j] : 1;
        split(weight_[j], weights_.whole + j, weights_.rest + j);
      }
    } else if (weights || !is_packed(count, features_)) {
      pack(k_, count, features_, weights, Number{0}, k_rows_, width_);
      k_ = {k_rows_, width_};
      for (int64_t j = 0; weights && j < count; ++j)
        multiply(k_rows_ + j * k_.stride, weights[j], features_,
                 k_rows_ + j * k_.stride);
    }
  }

  void read_queries(int64_t first, int64_t count) {
    Rows<Number> q{tokens_.q + first * tokens_.q_stride, tokens_.q_stride};
    if (!is_packed(count, features_)) {
      pack(q, count, features_, static_cast<const Number*>(nullptr), Number{0}, q_rows_,
           width_);
      q = {q_rows_, width_};
    }
    transpose(q, kChunk, width_, q_turned_, kChunk);
    if (tokens_.log_decay)
      exponentials([&](int64_t t) { return scale_.log_scale + decays_.until[t]; },
                   start_);
    if (form_.causal) multiply_pairs();
  }

  // pairs_[j][t] = k_j . q_t times what is left of key j at query t; 0 if it is later.
  void multiply_pairs() {
    each_block<Number>(
        kChunk, kChunk,
        [&](auto& block, int64_t key, int64_t query) __attribute__((always_inline)) {
          block.clear();
          block.add_products([&](int i, int64_t f) { return k_[key + i][f]; },
                             [&](int64_t f) { return q_turned_ + f * kChunk + query; },
                             0, features_);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            const int64_t first = query + j * kStep;
            store(select(lanes_from(key + i, first), sum, Vector<Number>{}),
                  pairs_ + (key + i) * kChunk + first);
          });
        });
    if (!tokens_.log_decay) return;
    for (int64_t j = 0; j < kChunk; ++j) {
      Number left[kChunk];
      exponentials(
          [&](int64_t t) {
            return t < j ? kNever : decays_.until[t] - decays_.until[j];
          },
          left);
      for (int64_t t = 0; t < kChunk; t += kStep)
        store(load(pairs_ + j * kChunk + t) * load(left + t), pairs_ + j * kChunk + t);
    }
  }

  void read_queries_of_logs(int64_t first, int64_t count) {
    pack({tokens_.q + first * tokens_.q_stride, tokens_.q_stride}, count, features_,
         static_cast<const Number*>(nullptr), static_cast<Number>(kNever), q_rows_,
         width_);
    const Rows<Number> q{q_rows_, width_};
    find_scales(q, count);
    if (form_.causal) add_pairs(q, count);
    Number below[kChunk];
    for (int64_t t = 0; t < kChunk; ++t) below[t] = -row_scale_[t];
    scale_.apply(q, width_, below, decays_.until, q_rows_);
    transpose(q, kChunk, width_, q_turned_, kChunk);
  }

  // row_scale_[t]: near the largest term of a row, so that no other row, earlier or
  // later, can push it out of range.
  void find_scales(Rows<Number> q, int64_t count) {
    for (int64_t i = 0; i < width_; i += kStep)
      store(load(scale_.peaks + i), kept_ + i);
    for (int64_t t = 0; t < kChunk; ++t) {
      row_scale_[t] = 0;
      if (t >= count) continue;
      const auto decay = static_cast<Number>(decays_.log[t]);
      Vector<Number> top = broadcast(static_cast<Number>(kNever));
      for (int64_t i = 0; i < width_; i += kStep) {
        Vector<Number> key = load(kept_ + i);
        if (form_.causal) {
          key = larger(key + decay, load(k_[t] + i) + weights_.whole[t]);
          store(key, kept_ + i);
        }
        top = larger(load(q[t] + i) + key, top);
      }
      const Number largest = whole<Number>(largest_of<Number>(top));
      row_scale_[t] = largest == static_cast<Number>(kNever) ? 0 : largest;
    }
  }

  // Feature by feature: a product of features would not be in range for every pair.
  void add_pairs(Rows<Number> q, int64_t count) {
    for (int64_t i = 0; i < kChunk * kChunk; ++i) pairs_[i] = 0;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t j = 0; j <= t; ++j) {
        const auto decay = static_cast<Number>(decays_.until[t] - decays_.until[j]);
        Vector<Number> sum{};
        for (int64_t i = 0; i < width_; i += kStep)
          sum += exp((load(q[t] + i) + (load(k_[j] + i) - row_scale_[t])) + decay);
        pairs_[j * kChunk + t] = sum_of<Number>(sum) * weight_[j];
      }
  }

  // den of the queries.
  void sum_weights() {
    constexpr int kChains = 4;
    const bool decays = tokens_.log_decay && !form_.log_features;
    for (int64_t t = 0; t < kChunk; t += kStep) {
      Vector<Number> sums[kChains] = {};
      for (int64_t f = 0; f < width_; f += kChains)
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain)
          sums[chain] += ones_[f + chain] * load(q_turned_ + (f + chain) * kChunk + t);
      Vector<Number> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      if (decays) sum *= load(start_ + t);
      if (form_.causal)
        for (int64_t j = 0; j < kChunk; ++j) sum += load(pairs_ + j * kChunk + t);
      store(sum, den_ + t);
    }
  }

  void divide(int64_t first, int64_t count, const LinearResults<Number>& results) {
    for (int64_t t = 0; t < count; ++t) {
      const Number scale = form_.log_features ? row_scale_[t] : 0;
      factor_[t] = factor_of(form_, den_[t], scale);
      results.lse[first + t] =
          den_[t] <= 0 ? static_cast<Number>(kNever) : logarithm(den_[t]) + scale;
      if (results.den) results.den[first + t] = den_[t];
      if (results.scale) results.scale[first + t] = scale;
    }
  }

  void write_rows(int64_t first, int64_t count, Number* out) {
    const bool in_place = is_packed(count, values_);
    const bool decays = tokens_.log_decay && !form_.log_features;
    Number* const rows = in_place ? out : out_rows_;
    Ahead<Number> ahead;
    if (!form_.causal)
      ahead.add(tokens_.q + (first + kChunk) * tokens_.q_stride, tokens_.q_stride,
                count_of(first + kChunk, tokens_.queries), features_);
    const int64_t lines = ahead.lines(kChunk, values_);
    each_block<Number>(
        kChunk, values_,
        [&](auto& block, int64_t query, int64_t column) __attribute__((always_inline)) {
          const int64_t end = query + rows_of(block);
          ahead.call(lines);
          block.clear();
          block.add_products(
              [&](int i, int64_t f) { return q_turned_[f * kChunk + query + i]; },
              [&](int64_t f) { return sums_ + f * stride_ + column; }, 0, features_);
          if (decays)
            block.each(
                [&](int i, int, Vector<Number>& sum) { sum *= start_[query + i]; });
          if (form_.causal)
            block.add_products(
                [&](int i, int64_t j) { return pairs_[j * kChunk + query + i]; },
                [&](int64_t j) { return v_[j] + column; }, 0,
                end < count ? end : count);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            store(sum * factor_[query + i],
                  rows + (query + i) * stride_ + column + j * kStep);
          });
        });
    if (in_place) return;
    for (int64_t t = 0; t < count; ++t)
      copy(out_rows_ + t * stride_, values_, out + t * values_);
  }

  void add_keys_read(int64_t first, int64_t count) {
    Rows<Number> k = k_, v = v_;
    const Number *kept = nullptr, *fade = nullptr;  // of the state, of the keys
    if (form_.log_features) {
      tops_ += static_cast<Number>(decays_.total);
      for (int64_t j = 0; j < count; ++j) {
        const auto after = static_cast<Number>(decays_.after[j]);
        for (int64_t i = 0; i < width_; i += kStep)
          tops_ = larger(load(k_[j] + i) + after, tops_);
      }
      scale_.raise(decays_.total, k_, count, width_, weights_.whole, decays_.after,
                   k_features_, kept_);
      k = {k_features_, width_};
      kept = kept_;
      if (tokens_.weights) fade = weights_.rest;
    } else if (tokens_.log_decay) {
      kept = scale_.fade(decays_.total, decays_.after, end_, kept_, width_);
      fade = end_;
    }
    if (fade) {
      for (int64_t j = 0; j < count; ++j)
        multiply(v_[j], fade[j], values_, v_faded_ + j * stride_);
      v = {v_faded_, stride_};
    }
    const int64_t next = first + kChunk, later = count_of(next, tokens_.keys);
    Ahead<Number> ahead;
    ahead.add(tokens_.k + next * tokens_.k_stride, tokens_.k_stride, later, features_);
    ahead.add(tokens_.v + next * tokens_.v_stride, tokens_.v_stride, later, values_);
    if (form_.causal)
      ahead.add(tokens_.q + next * tokens_.q_stride, tokens_.q_stride, later,
                features_);
    add_products<true>(k, v, count, features_, values_, kept, sums_, stride_, ahead);
    for (int64_t f = 0; f < width_; f += kStep) {
      Vector<Number> old = load(ones_ + f), sum{};
      if (kept) old *= load(kept + f);
      for (int64_t j = 0; j < count; ++j) sum += load(k[j] + f) * (fade ? fade[j] : 1);
      store(old + sum, ones_ + f);
    }
  }

  LinearTokens<Number> tokens_;
  LinearForm form_;
  int64_t features_, width_, values_, stride_;
  int64_t used_ = 0;

  // The state: sums of values and of ones, relative to scale_.
  Number* sums_;  // [width_][stride_]
  Number* ones_;  // [width_]
  Scale<Number> scale_;
  Vector<Number> tops_ = broadcast(static_cast<Number>(kNever));

  // Of the chunk.
  Rows<Number> k_, v_;
  Decays decays_;
  Weights<Number> weights_;
  Number *kept_, *q_rows_, *q_turned_, *k_rows_, *k_features_, *v_rows_, *v_faded_,
      *out_rows_, *pairs_;
  alignas(64) Number start_[kChunk], end_[kChunk], den_[kChunk];
  Number factor_[kChunk] = {}, row_scale_[kChunk], weight_[kChunk];
};

template <class Number>
void add_keys(const LinearTokens<Number>& tokens, const LinearSums<Number>& state,
              Number* largest, Number* scratch) {
  Scan<Number> scan(tokens, scratch);
  scan.load_state(state);
  for (int64_t first = 0; first < tokens.keys; first += kChunk) scan.add_keys(first);
  scan.store_state(state);
  if (tokens.form.log_features && scan.largest() > *largest) *largest = scan.largest();
}

template <class Number>
void attend(const LinearTokens<Number>& tokens, const LinearSums<Number>& state,
            Number* largest, const LinearResults<Number>& results, Number* scratch) {
  const LinearForm& form = tokens.form;
  Scan<Number> scan(tokens, scratch);
  scan.load_state(state);
  LinearSums<Number> kept = results.kept;
  for (int64_t first = 0; first < tokens.queries; first += kChunk) {
    if (kept.sums && first % kLinearPiece == 0) {
      scan.store_state(kept);
      kept.sums += form.features * (form.values + 1);
      if (kept.peaks) kept.peaks += form.features;
    }
    scan.attend(first, results);
  }
  if (!form.causal) return;
  scan.store_state(state);
  if (form.log_features && scan.largest() > *largest) *largest = scan.largest();
}

}  // namespace

const LinearKernels<float> linear_of_floats = {Scan<float>::scratch, add_keys<float>,
                                               attend<float>};
const LinearKernels<double> linear_of_doubles = {Scan<double>::scratch,
                                                 add_keys<double>, attend<double>};

}  // namespace longspan::cpu::LONGSPAN_ISA
