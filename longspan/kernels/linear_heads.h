// What linear attention on the CPU and its gradient share: heads for the vector code,
// and their states.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include "longspan/kernels/cpu/linear_attention.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/linear_attention.h"

namespace longspan::linear_heads {

using cpu::LinearSums;
using cpu::LinearTokens;
using torch::Tensor;

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

inline double finite_or_0(double x) { return x == kNever ? 0 : x; }

inline constexpr int64_t kSegment = 2 * cpu::kLinearPiece;  // tokens

// How the tokens of a head are shared out. Where there are few tasks, segments of them
// are: their sums are found first, for all at once, then added up in order. That is a
// third as much work again, so with more tasks each goes through its tokens in one.
// Never chosen by the number of threads.
struct Segments {
  static constexpr int64_t kFewTasks = 4;

  Segments(int64_t tokens, int64_t tasks)
      : count(tasks < kFewTasks ? std::max<int64_t>(1, parts_of(tokens, kSegment)) : 1),
        size(count == 1 ? tokens : kSegment) {}

  int64_t first(int64_t segment) const { return segment * size; }

  const int64_t count, size;
};

inline cpu::LinearDivisor divisor(Normaliser normaliser) {
  switch (normaliser) {
    case Normaliser::none: break;
    case Normaliser::plus: return cpu::LinearDivisor::plus;
    case Normaliser::at_least: return cpu::LinearDivisor::at_least;
    case Normaliser::if_positive: return cpu::LinearDivisor::if_positive;
  }
  return cpu::LinearDivisor::none;
}

// work(i, scratch) for all i below `count`, each of which is about `size`
// multiplications.
template <class Number, class Work>
void each(int64_t count, int64_t size, int64_t scratch_size, const Work& work) {
  constexpr int64_t kWorthAThread = 1 << 20;
  const int64_t grain =
      std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, size));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    const Tensor scratch =
        torch::empty({scratch_size}, c10::CppTypeToScalarType<Number>::value);
    for (int64_t i = begin; i < end; ++i) work(i, scratch.data_ptr<Number>());
  });
}

// The inputs, all of one type (log_decay double), for the vector code.
template <class Number>
class Heads {
 public:
  Heads(const LinearInputs& inputs, const LinearAttention& options)
      : examples(inputs.q.size(0)),
        heads(inputs.q.size(1)),
        key_heads(inputs.k.size(1)),
        queries(inputs.q.size(2)),
        keys(inputs.k.size(2)),
        form{.features = inputs.q.size(3),
             .values = inputs.v.size(3),
             .causal = options.causal,
             .log_features = options.log_features,
             .divisor = divisor(options.normaliser),
             .epsilon = options.epsilon},
        q_(unit_stride(inputs.q, dtype)),
        k_(unit_stride(inputs.k, dtype)),
        v_(unit_stride(inputs.v, dtype)) {
    if (inputs.log_decay.defined())
      log_decay_ = of_every_head(inputs.log_decay.to(torch::kDouble));
    if (inputs.weights.defined()) weights_ = of_every_head(inputs.weights.to(dtype));
  }

  static constexpr auto dtype = c10::CppTypeToScalarType<Number>::value;
  const int64_t examples, heads, key_heads, queries, keys;
  const cpu::LinearForm form;

  int64_t all() const { return examples * heads; }
  int64_t group() const { return heads / key_heads; }
  int64_t state_size() const { return form.features * (form.values + 1); }

  // All of one head of the queries.
  LinearTokens<Number> at(int64_t head) const {
    const int64_t example = head / heads, key_head = head % heads / group();
    return {.form = form,
            .queries = queries,
            .keys = keys,
            .q = head_of<Number>(q_, example, head % heads),
            .q_stride = q_.stride(2),
            .k = head_of<Number>(k_, example, key_head),
            .k_stride = k_.stride(2),
            .v = head_of<Number>(v_, example, key_head),
            .v_stride = v_.stride(2),
            .log_decay = head_of<double>(log_decay_, example, head % heads),
            .weights = head_of<Number>(weights_, example, head % heads)};
  }

 private:
  Tensor of_every_head(const Tensor& x) const {
    return x.contiguous().expand({examples, heads, keys});
  }

  Tensor q_, k_, v_, log_decay_, weights_;
};

template <class Number>
LinearTokens<Number> some_queries(LinearTokens<Number> tokens, int64_t first,
                                  int64_t count) {
  tokens.q += first * tokens.q_stride;
  tokens.queries = std::min(count, tokens.queries - first);
  return tokens;
}

template <class Number>
LinearTokens<Number> some_keys(LinearTokens<Number> tokens, int64_t first,
                               int64_t count) {
  tokens.k += first * tokens.k_stride;
  tokens.v += first * tokens.v_stride;
  if (tokens.log_decay) tokens.log_decay += first;
  if (tokens.weights) tokens.weights += first;
  tokens.keys = std::min(count, tokens.keys - first);
  return tokens;
}

template <class Number>
LinearTokens<Number> some(const LinearTokens<Number>& tokens, int64_t first,
                          int64_t count) {
  return some_keys(some_queries(tokens, first, count), first, count);
}

// The log of what is left after the keys of what was before them.
template <class Number>
double decay_of(const LinearTokens<Number>& tokens) {
  double sum = 0;
  for (int64_t j = 0; tokens.log_decay && j < tokens.keys; ++j)
    sum += tokens.log_decay[j];
  return sum;
}

// States of every head, or their slopes.
template <class Number>
class States {
 public:
  // Of nothing: sums of 0.
  States(const Heads<Number>& heads, int64_t each_head)
      : States(heads,
               torch::zeros(
                   {heads.all(), each_head, heads.form.features, heads.form.values + 1},
                   heads.dtype),
               heads.form.log_features
                   ? torch::full({heads.all(), each_head, heads.form.features}, kNever,
                                 heads.dtype)
                   : Tensor()) {}

  States(const Heads<Number>& heads, Tensor sums, Tensor peaks)
      : sums_(std::move(sums)),
        peaks_(std::move(peaks)),
        features_(heads.form.features),
        columns_(heads.form.values + 1) {}

  const Tensor& sums() const { return sums_; }
  const Tensor& peaks() const { return peaks_; }

  LinearSums<Number> at(int64_t head, int64_t i) const {
    const int64_t index = head * sums_.size(1) + i;
    return {.sums = sums_.template data_ptr<Number>() + index * features_ * columns_,
            .peaks = peaks_.defined()
                         ? peaks_.template data_ptr<Number>() + index * features_
                         : nullptr};
  }

  // Adds what `log_decay` leaves of one to another.
  void add(const LinearSums<Number>& from, double log_decay,
           const LinearSums<Number>& to) const {
    for (int64_t f = 0; f < features_; ++f) {
      double of_from = std::exp(log_decay), of_to = 1;
      if (to.peaks) {
        const double log_from = from.peaks[f] + log_decay, log_to = to.peaks[f];
        const double peak = std::max(std::rint(log_from), log_to);
        if (peak == kNever) continue;
        of_from = std::exp(log_from - peak);
        of_to = std::exp(log_to - peak);
        to.peaks[f] = static_cast<Number>(peak);
      }
      for (int64_t i = f * columns_; i < (f + 1) * columns_; ++i)
        to.sums[i] = static_cast<Number>(to.sums[i] * of_to + from.sums[i] * of_from);
    }
  }

  // Sums that are times exp(scale), for a scale that need not be whole.
  void load(const LinearSums<Number>& to, const Number* sums, double scale) const {
    for (int64_t f = 0; f < features_; ++f) {
      const Number* const from = sums + f * columns_;
      double factor = 1;
      if (to.peaks) {
        double size = 0;
        for (int64_t i = 0; i < columns_; ++i)
          size = std::max(size, std::abs(static_cast<double>(from[i])));
        const double peak = std::rint(std::log(size) + scale);
        factor = peak == kNever ? 0 : std::exp(scale - peak);
        to.peaks[f] = static_cast<Number>(peak);
      }
      for (int64_t i = 0; i < columns_; ++i)
        to.sums[f * columns_ + i] = static_cast<Number>(from[i] * factor);
    }
  }

  // `scale`, or more where sums times exp(-scale) would be huge: logs that decays have
  // made huge are rounded.
  double in_range(const LinearSums<Number>& from, double scale) const {
    constexpr double kReach = 32;
    return std::max<double>(
        scale, *std::max_element(from.peaks, from.peaks + features_) - kReach);
  }

  // The contrary: sums times exp(-scale).
  void store(const LinearSums<Number>& from, Number* sums, double scale) const {
    // Only sums of 0 can need the limit: 0 times infinity is not 0.
    constexpr double kLimit = sizeof(Number) == 4 ? 88 : 709;
    for (int64_t f = 0; f < features_; ++f) {
      const double factor =
          from.peaks ? std::exp(std::min(kLimit, from.peaks[f] - scale)) : 1;
      for (int64_t i = f * columns_; i < (f + 1) * columns_; ++i)
        sums[i] = static_cast<Number>(from.sums[i] * factor);
    }
  }

 private:
  Tensor sums_, peaks_;
  int64_t features_, columns_;
};

}  // namespace longspan::linear_heads
