#include "longspan/kernels/cpu/pool.h"

#include "longspan/kernels/cpu/vec_any.h"
#include "longspan/kernels/cpu/vec_math.h"
#include "longspan/kernels/cpu/vec_sums.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

// Scores may rise this far above the base of a prefix before its sums are rescaled:
// seldom, so that rounding does not add up.
constexpr double kReach = 20;

template <class Number>
constexpr Number kNothing = static_cast<Number>(-__builtin_inf());

template <int columns>
struct WholeTile {
  static constexpr int kColumns = columns;
  constexpr operator int64_t() const { return columns; }
};

struct PartOfTile {
  static constexpr int kColumns = kPoolColumns;
  int64_t columns;
  operator int64_t() const { return columns; }
};

// work(first column, number of columns) for all columns; kColumns of the number's type
// is a constant that is not less.
template <class Work>
[[gnu::always_inline]] inline void each_tile(int64_t width, const Work& work) {
  constexpr int kWide = 2 * kPoolColumns;
  int64_t from = 0;
  for (; from + kWide <= width; from += kWide) work(from, WholeTile<kWide>());
  if (from + kPoolColumns <= width) {
    work(from, WholeTile<kPoolColumns>());
    from += kPoolColumns;
  }
  if (from < width) work(from, PartOfTile{width - from});
}

// work(first token, its end) for every segment.
template <class Work>
[[gnu::always_inline]] inline void each_segment(int64_t tokens, int64_t segment,
                                                const Work& work) {
  for (int64_t from = 0; from < tokens; from += segment)
    work(from, tokens - from < segment ? tokens : from + segment);
}

// Some columns of one row, in double.
template <int columns>
struct Tile {
  static constexpr int kVectors = columns / kLanesOf<double>;
  Doubles at[kVectors];

  // The first `count` columns.
  template <class Number>
  [[gnu::always_inline]] void load(const Number* from, int64_t count) {
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i)
      at[i] = load_double(from + i * kLanesOf<double>, count - i * kLanesOf<double>);
  }

  template <class Number>
  [[gnu::always_inline]] void store(Number* to, int64_t count) const {
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i)
      store_rounded(at[i], to + i * kLanesOf<double>, count - i * kLanesOf<double>);
  }

  // All columns of sums in memory.
  [[gnu::always_inline]] void load(const double* from) { load(from, columns); }
  [[gnu::always_inline]] void store(double* to) const { store(to, columns); }

  [[gnu::always_inline]] Tile times(double factor) const {
    Tile result;
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) result.at[i] = at[i] * factor;
    return result;
  }

  [[gnu::always_inline]] void add(const Tile& x, double weight) {
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) at[i] += x.at[i] * weight;
  }

  [[gnu::always_inline]] Doubles products(const Tile& other) const {
    Doubles sums[4] = {};  // that do not wait for each other
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) sums[i % 4] += at[i] * other.at[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

template <class Columns>
using TileOf = Tile<Columns::kColumns>;

// `sums` of `width` columns, rounded up to whole tiles.
void clear(double* sums, int64_t width) {
  each_tile(width, [&](int64_t column, auto columns) {
    TileOf<decltype(columns)>{}.store(sums + column);
  });
}

template <class Number>
bool is_kept(const PoolTokens<Number>& tokens, int64_t token) {
  return !tokens.keep || tokens.keep[token];
}

// -infinity where the token does not count.
template <class Number>
Number score_of(const PoolTokens<Number>& tokens, int64_t token) {
  return is_kept(tokens, token) ? tokens.scores[token] : kNothing<Number>;
}

template <class Number>
void exp_all(Number* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanesOf<Number>)
    store(exp(load(x + i, count - i)), x + i, count - i);
}

// exp(score - base), or 1 without scores, of `count` tokens from `first` on; 0 of those
// that do not count.
template <class Number>
void weigh(const PoolTokens<Number>& tokens, int64_t first, int64_t count, Number base,
           Number* weights) {
  if (!tokens.scores) {
    for (int64_t i = 0; i < count; ++i) weights[i] = is_kept(tokens, first + i);
    return;
  }
  if (base == kNothing<Number>) base = 0;
  for (int64_t i = 0; i < count; ++i) weights[i] = score_of(tokens, first + i) - base;
  exp_all(weights, count);
}

template <class Number>
void pool_spans(const PoolSpans<Number>& task) {
  const auto& tokens = task.tokens;
  const auto& pooled = task.pooled;
  for (int64_t span = 0; span < task.span_count; ++span) {
    const int64_t from = task.spans[2 * span], to = task.spans[2 * span + 1];
    Number base = kNothing<Number>;
    if (tokens.scores)
      for (int64_t i = from; i < to; ++i) {
        const Number score = score_of(tokens, i);
        base = score > base ? score : base;
      }

    double total = 0;
    clear(task.sums, task.width);
    for (int64_t first = from; first < to; first += kPoolTokens) {
      const int64_t count = to - first < kPoolTokens ? to - first : kPoolTokens;
      Number weights[kPoolTokens];
      weigh(tokens, first, count, base, weights);
      for (int64_t i = 0; i < count; ++i) total += weights[i];
      each_tile(task.width, [&](int64_t column, auto columns) {
        TileOf<decltype(columns)> sum, x;
        sum.load(task.sums + column);
        for (int64_t i = 0; i < count; ++i) {
          // Without weight no value counts, not even one that is not finite.
          if (weights[i] == 0) continue;
          x.load(tokens.x + (first + i) * tokens.x_stride + column, columns);
          sum.add(x, weights[i]);
        }
        sum.store(task.sums + column);
      });
    }

    const double factor = total == 0 ? 0 : task.divided ? 1 / total : 1;
    each_tile(task.width, [&](int64_t column, auto columns) {
      TileOf<decltype(columns)> sum;
      sum.load(task.sums + column);
      sum.times(factor).store(pooled.out + span * pooled.out_stride + column, columns);
    });
    if (pooled.base) pooled.base[span] = base;
    if (pooled.factor) pooled.factor[span] = static_cast<Number>(factor);
    if (pooled.lse)
      pooled.lse[span] = total == 0 ? kNothing<Number>
                                    : static_cast<Number>(base + __builtin_log(total));
  }
}

// to = factor * x, or more of it.
template <class Number>
void add_row(const Number* x, Number factor, bool to_what_is_there, Number* to,
             int64_t width) {
  for (int64_t i = 0; i < width; i += kLanesOf<Number>) {
    Vector<Number> y = factor * load(x + i, width - i);
    if (to_what_is_there) y += load(to + i, width - i);
    store(y, to + i, width - i);
  }
}

template <class Number>
void pool_spans_gradient(const PoolSpansGradient<Number>& task) {
  const auto& tokens = task.tokens;
  const int64_t width = task.width, first = task.first, end = first + task.count;
  bool begun[kPoolTokens] = {};
  double dscores[kPoolTokens] = {};
  for (int64_t i = 0; i < task.which_count; ++i) {
    const int64_t span = task.which[i];
    if (task.factor[span] == 0) continue;
    const int64_t span_from = task.spans[2 * span], span_to = task.spans[2 * span + 1];
    const int64_t from = span_from > first ? span_from : first;
    const int64_t to = span_to < end ? span_to : end;
    Number weights[kPoolTokens];
    weigh(tokens, from, to - from, task.base ? task.base[span] : Number{0}, weights);
    const Number* const dout = task.dout + span * task.dout_stride;
    for (int64_t token = from; token < to; ++token) {
      const Number weight = weights[token - from] * task.factor[span];
      if (weight == 0) continue;
      if (task.dx)
        add_row(dout, weight, begun[token - first], task.dx + token * width, width);
      begun[token - first] = true;
      if (task.dscores)
        dscores[token - first] +=
            weight *
            (dot(dout, tokens.x + token * tokens.x_stride, width) - task.offset[span]);
    }
  }
  for (int64_t token = first; token < end; ++token) {
    if (task.dx && !begun[token - first])
      std::memset(task.dx + token * width, 0, width * sizeof(Number));
    if (task.dscores) task.dscores[token] = static_cast<Number>(dscores[token - first]);
  }
}

// What the tokens of a prefix weigh when the base has become `base`, seen from one
// where it was `before`.
template <class Number>
double rescaling(Number before, Number base) {
  return before == base
             ? 1
             : __builtin_exp(static_cast<double>(before) - static_cast<double>(base));
}

// A block of at most kPoolTokens tokens of a segment.
template <class Number>
struct PrefixBlock {
  Number base[kPoolTokens];
  Number weights[kPoolTokens];   // exp(score - base)
  double rescaled[kPoolTokens];  // by this, what was summed before
  double totals[kPoolTokens];    // of weights
  double factors[kPoolTokens];
};

// Goes on from what the last block of the segment ended with.
template <class Number>
void weigh_prefixes(const PoolTokens<Number>& tokens, int64_t first, int64_t count,
                    bool divided, Number& base, double& total,
                    PrefixBlock<Number>& block) {
  for (int64_t i = 0; i < count; ++i) block.rescaled[i] = 1;
  if (tokens.scores) {
    for (int64_t i = 0; i < count; ++i) {
      const Number score = score_of(tokens, first + i);
      if (score > base + static_cast<Number>(kReach)) {
        block.rescaled[i] = rescaling(base, score);
        base = score;
      }
      block.base[i] = base;
      block.weights[i] = base == kNothing<Number> ? score : score - base;
    }
    exp_all(block.weights, count);
  } else {
    weigh(tokens, first, count, Number{0}, block.weights);
  }
  for (int64_t i = 0; i < count; ++i) {
    total = total * block.rescaled[i] + block.weights[i];
    block.totals[i] = total;
  }
  for (int64_t i = 0; i < count; ++i)
    block.factors[i] = block.totals[i] == 0 ? 0 : divided ? 1 / block.totals[i] : 1;
}

template <class Number>
void pool_prefixes(const PoolPrefixes<Number>& task) {
  const auto& tokens = task.tokens;
  const auto& pooled = task.pooled;
  each_segment(task.token_count, task.segment, [&](int64_t from, int64_t to) {
    Number base = kNothing<Number>;
    double total = 0;
    clear(task.sums, task.width);
    for (int64_t first = from; first < to; first += kPoolTokens) {
      const int64_t count = to - first < kPoolTokens ? to - first : kPoolTokens;
      PrefixBlock<Number> block;
      weigh_prefixes(tokens, first, count, task.divided, base, total, block);
      each_tile(task.width, [&](int64_t column, auto columns) {
        TileOf<decltype(columns)> sum, x;
        sum.load(task.sums + column);
        for (int64_t i = 0; i < count; ++i) {
          if (block.rescaled[i] != 1) sum = sum.times(block.rescaled[i]);
          // Without weight no value counts, not even one that is not finite.
          if (block.weights[i] != 0) {
            x.load(tokens.x + (first + i) * tokens.x_stride + column, columns);
            sum.add(x, block.weights[i]);
          }
          sum.times(block.factors[i])
              .store(pooled.out + (first + i) * pooled.out_stride + column, columns);
        }
        sum.store(task.sums + column);
      });

      if (pooled.base)
        std::memcpy(pooled.base + first, block.base, count * sizeof(Number));
      if (pooled.factor)
        for (int64_t i = 0; i < count; ++i)
          pooled.factor[first + i] = static_cast<Number>(block.factors[i]);
      if (!pooled.lse) continue;
      Number totals[kPoolTokens];
      for (int64_t i = 0; i < count; ++i)
        totals[i] = static_cast<Number>(block.totals[i]);
      for (int64_t i = 0; i < count; i += kLanesOf<Number>) {
        const auto sums = load(totals + i, count - i);
        const Vector<Number> lse = load(block.base + i, count - i) + log(sums);
        store(sums == 0 ? broadcast(kNothing<Number>) : lse, pooled.lse + first + i,
              count - i);
      }
    }
  });
}

template <class Number>
void pool_prefixes_gradient(const PoolPrefixesGradient<Number>& task) {
  const auto& tokens = task.tokens;
  each_segment(task.token_count, task.segment, [&](int64_t from, int64_t to) {
    // Sums of factor * dout and of factor * offset over the prefixes a token is in.
    clear(task.sums, task.width);
    double offsets = 0;

    for (int64_t end = to; end > from; end -= kPoolTokens) {
      const int64_t first = end - from < kPoolTokens ? from : end - kPoolTokens;
      const int64_t count = end - first;
      Number weights[kPoolTokens];
      double rescaled[kPoolTokens], dscores[kPoolTokens];
      for (int64_t i = 0; i < count; ++i) rescaled[i] = 1;
      if (tokens.scores) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t token = first + i;
          const Number base = task.base[token];
          if (token > from) rescaled[i] = rescaling(task.base[token - 1], base);
          const Number score = score_of(tokens, token);
          weights[i] = base == kNothing<Number> ? score : score - base;
        }
        exp_all(weights, count);
      } else {
        weigh(tokens, first, count, Number{0}, weights);
      }
      for (int64_t i = count - 1; i >= 0; --i) {
        const Number factor = task.factor[first + i];
        if (task.offset && factor != 0) offsets += factor * task.offset[first + i];
        dscores[i] = weights[i] == 0 ? 0 : -(weights[i] * offsets);
        offsets *= rescaled[i];
      }

      each_tile(task.width, [&](int64_t column, auto columns) {
        using Row = TileOf<decltype(columns)>;
        Row sum, row;
        sum.load(task.sums + column);
        for (int64_t i = count - 1; i >= 0; --i) {
          const int64_t token = first + i;
          const Number factor = task.factor[token], weight = weights[i];
          if (factor != 0) {
            row.load(task.dout + token * task.dout_stride + column, columns);
            sum.add(row, factor);
          }
          const Row dx = weight == 0 ? Row{} : sum.times(weight);
          if (task.dx) dx.store(task.dx + token * task.dx_stride + column, columns);
          if (task.dscores && weight != 0) {
            row.load(tokens.x + token * tokens.x_stride + column, columns);
            dscores[i] += sum_in_double(dx.products(row));
          }
          if (rescaled[i] != 1) sum = sum.times(rescaled[i]);
        }
        sum.store(task.sums + column);
      });
      if (task.dscores)
        std::memcpy(task.dscores + first, dscores, count * sizeof(double));
    }
  });
}

template <class Number>
void pool_offsets(const PoolOffsets<Number>& task) {
  for (int64_t row = 0; row < task.rows; ++row)
    task.offset[row] = dot(task.dout + row * task.dout_stride,
                           task.out + row * task.width, task.width) -
                       task.dlse[row];
}

// Where x becomes the largest: NaN does and stays.
[[gnu::always_inline]] inline auto is_larger(const Doubles& x, const Doubles& largest) {
  return (x > largest) | ((x != x) & (largest == largest));
}

template <class Number>
void largest_of_spans(const LargestOfSpans<Number>& task) {
  const auto& tokens = task.tokens;
  for (int64_t span = 0; span < task.span_count; ++span) {
    int64_t from = task.spans[2 * span];
    const int64_t to = task.spans[2 * span + 1];
    while (from < to && !is_kept(tokens, from)) ++from;
    each_tile(task.width, [&](int64_t column, auto columns) {
      TileOf<decltype(columns)> largest{}, place{}, x;
      const auto load_token = [&](int64_t token, auto& to_tile) {
        to_tile.load(tokens.x + token * tokens.x_stride + column, columns);
      };
      for (Doubles& one : place.at) one = broadcast(from < to ? from : -1.0);
      if (from < to) load_token(from, largest);
      for (int64_t token = from + 1; token < to; ++token) {
        if (!is_kept(tokens, token)) continue;
        load_token(token, x);
#pragma GCC unroll 32
        for (int i = 0; i < x.kVectors; ++i) {
          const auto larger_here = is_larger(x.at[i], largest.at[i]);
          largest.at[i] = larger_here ? x.at[i] : largest.at[i];
          place.at[i] =
              larger_here ? broadcast(static_cast<double>(token)) : place.at[i];
        }
      }
      largest.store(task.out + span * task.stride + column, columns);
      if (task.place) place.store(task.place + span * task.stride + column, columns);
    });
  }
}

template <class Number>
void largest_of_prefixes(const LargestOfPrefixes<Number>& task) {
  const auto& tokens = task.tokens;
  each_segment(task.token_count, task.segment, [&](int64_t from, int64_t to) {
    each_tile(task.width, [&](int64_t column, auto columns) {
      TileOf<decltype(columns)> largest{}, x;
      bool begun = false;
      for (int64_t token = from; token < to; ++token) {
        if (is_kept(tokens, token)) {
          x.load(tokens.x + token * tokens.x_stride + column, columns);
          if (!begun) largest = x;
          begun = true;
#pragma GCC unroll 32
          for (int i = 0; i < x.kVectors; ++i)
            largest.at[i] = is_larger(x.at[i], largest.at[i]) ? x.at[i] : largest.at[i];
        }
        largest.store(task.out + token * task.out_stride + column, columns);
      }
    });
  });
}

// A token has the slopes of all prefixes from itself, if it is larger than all before
// it, to the next larger one.
template <class Number>
void largest_of_prefixes_gradient(const LargestOfPrefixesGradient<Number>& task) {
  const PoolTokens<Number> tokens{.keep = task.keep};
  each_segment(task.token_count, task.segment, [&](int64_t from, int64_t to) {
    int64_t first_kept = from;
    while (first_kept < to && !is_kept(tokens, first_kept)) ++first_kept;
    each_tile(task.width, [&](int64_t column, auto columns) {
      using Row = TileOf<decltype(columns)>;
      Row sum{}, row, out, before;
      for (int64_t token = to - 1; token >= from; --token) {
        Row dx{};
        row.load(task.dout + token * task.dout_stride + column, columns);
        sum.add(row, 1);
        if (token == first_kept) {
          dx = sum;
        } else if (token > first_kept && is_kept(tokens, token)) {
          out.load(task.out + token * task.out_stride + column, columns);
          before.load(task.out + (token - 1) * task.out_stride + column, columns);
#pragma GCC unroll 32
          for (int i = 0; i < Row::kVectors; ++i) {
            const auto is_new = is_larger(out.at[i], before.at[i]);
            dx.at[i] = is_new ? sum.at[i] : Doubles{};
            sum.at[i] = is_new ? Doubles{} : sum.at[i];
          }
        }
        dx.store(task.dx + token * task.dx_stride + column, columns);
      }
    });
  });
}

}  // namespace

void pool(const PoolSpans<float>& task) { pool_spans(task); }
void pool(const PoolSpans<double>& task) { pool_spans(task); }
void pool(const PoolSpansGradient<float>& task) { pool_spans_gradient(task); }
void pool(const PoolSpansGradient<double>& task) { pool_spans_gradient(task); }
void pool(const PoolPrefixes<float>& task) { pool_prefixes(task); }
void pool(const PoolPrefixes<double>& task) { pool_prefixes(task); }
void pool(const PoolPrefixesGradient<float>& task) { pool_prefixes_gradient(task); }
void pool(const PoolPrefixesGradient<double>& task) { pool_prefixes_gradient(task); }
void pool(const PoolOffsets<float>& task) { pool_offsets(task); }
void pool(const PoolOffsets<double>& task) { pool_offsets(task); }
void pool(const LargestOfSpans<float>& task) { largest_of_spans(task); }
void pool(const LargestOfSpans<double>& task) { largest_of_spans(task); }
void pool(const LargestOfPrefixes<float>& task) { largest_of_prefixes(task); }
void pool(const LargestOfPrefixes<double>& task) { largest_of_prefixes(task); }
void pool(const LargestOfPrefixesGradient<float>& task) {
  largest_of_prefixes_gradient(task);
}
void pool(const LargestOfPrefixesGradient<double>& task) {
  largest_of_prefixes_gradient(task);
}

}  // namespace longspan::cpu::LONGSPAN_ISA
