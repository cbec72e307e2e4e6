// A piece of tokens is gone through twice: forwards for the gradients of queries, from
// the state before each chunk, and backwards for those of keys and values, from the
// slope of the state after it.

#include "longspan/kernels/cpu/linear_attention.h"
#include "longspan/kernels/cpu/vec.h"
#include "longspan/kernels/cpu/vec_linear.h"
#include "longspan/kernels/cpu/vec_sums.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

constexpr int64_t kChunks = kLinearPiece / kChunk;  // of a piece
constexpr int64_t kPairs = kChunk * kChunk;         // of a chunk

// A state, or the slope of one, with a row for each value and a last one for the ones.
template <class Number>
struct TurnedSums {
  int64_t features = 0, values = 0, width = 0, height = 0;
  Number* sums = nullptr;  // [height][width], relative to `scale`
  Scale<Number> scale = {};

  void load_from(const LinearSums<Number>& from) {
    for (int64_t c = 0; c < height; ++c)
      for (int64_t f = 0; f < width; ++f)
        sums[c * width + f] =
            c <= values && f < features ? from.sums[f * (values + 1) + c] : Number{0};
    for (int64_t f = 0; f < width; ++f)
      scale.peaks[f] =
          from.peaks && f < features ? from.peaks[f] : static_cast<Number>(kNever);
    scale.log_scale = 0;
  }

  void store_to(const LinearSums<Number>& to) const {
    const auto factor = static_cast<Number>(::exp(scale.log_scale));
    for (int64_t f = 0; f < features; ++f) {
      for (int64_t c = 0; c <= values; ++c)
        to.sums[f * (values + 1) + c] = sums[c * width + f] * factor;
      if (to.peaks) to.peaks[f] = scale.peaks[f];
    }
  }

  // Adds left[x] right[x]^T, of what there was only `kept` of each feature.
  void add(Rows<Number> left, Rows<Number> right, int64_t count, const Number* kept,
           const Ahead<Number>& ahead) {
    add_products<false>(left, right, count, values + 1, width, kept, sums, width,
                        ahead);
  }
};

// Slopes of num and den of one query, from those of its out and lse.
template <class Number>
inline void slopes_of(const LinearForm& form, const LinearSlopes<Number>& slopes,
                      int64_t query, Number* to, int64_t height) {
  constexpr int kStep = kLanesOf<Number>;
  const int64_t values = form.values;
  const Number den = slopes.den[query];
  const Number scale = slopes.scale ? slopes.scale[query] : 0;
  const Number factor = factor_of(form, den, scale);
  Number together = 0;  // dout . out
  int64_t i = 0;
  if (slopes.dout) {
    const Number* const dout = slopes.dout + query * values;
    const Number* const out = slopes.out + query * values;
    Vector<Number> sum{};
    for (; i + kStep <= values; i += kStep) {
      const Vector<Number> d = load(dout + i);
      sum += d * load(out + i);
      store(d * factor, to + i);
    }
    together = sum_of<Number>(sum);
    for (; i < values; ++i) {
      together += dout[i] * out[i];
      to[i] = dout[i] * factor;
    }
  }
  for (; i < height; ++i) to[i] = 0;
  if (is_over_den(form, den, scale)) to[values] = -together * factor;
  if (slopes.dlse && den > 0) to[values] += slopes.dlse[query] / den;
}

template <class Number>
class Gradient {
 public:
  Gradient(const LinearTokens<Number>& tokens, const LinearSlopes<Number>& slopes,
           const LinearGradients<Number>& gradients, Number* scratch)
      : Gradient(tokens.form, Scratch(scratch)) {
    tokens_ = tokens;
    slopes_ = slopes;
    gradients_ = gradients;
  }

  static int64_t scratch(const LinearForm& form) {
    return Gradient(form, Scratch(nullptr)).used_;
  }

  TurnedSums<Number>& state() { return state_; }
  TurnedSums<Number>& slope() { return slope_; }

  // Gradients of the queries of a chunk, from the state before it. Causal: also from
  // its keys, which are then added to the state; and the gradients of keys of log
  // features from the queries of the same chunk.
  void go_through_queries(int64_t first, int64_t chunk) {
    const int64_t count = count_of(first, tokens_.queries);
    use(chunk);
    read_slopes(first, count);
    read_queries(first, count);
    if (form_.causal) read_keys(first, count);
    multiply_by(state_, {rows_, height_});
    if (form_.log_features)
      apply_features_of_queries(first, count);
    else if (tokens_.log_decay)
      fade_tile([&](int64_t t) { return state_.scale.log_scale + decays_.until[t]; });
    if (form_.causal) {
      if (gradients_.dlog_decay) remember_state(chunk, count);
      transpose({rows_, height_}, kChunk, height_, rows_turned_, kChunk);
      multiply_slopes_and_values();
      if (form_.log_features)
        add_pairs_of_logs(first, count);
      else
        add_pairs_to_queries(count);
    }
    if (gradients_.dq)
      for (int64_t t = 0; t < count; ++t)
        copy(tile_ + t * width_, features_, gradients_.dq + (first + t) * features_);
    if (form_.causal) add_keys(first, count);
  }

  // Gradients of the keys and values of a chunk, from the slope of the state after it.
  // Causal: also from its queries, which are then added to the slope.
  void go_through_keys(int64_t first, int64_t chunk) {
    const int64_t count = count_of(first, tokens_.keys);
    use(chunk);
    read_keys(first, count);
    if (form_.causal) read_queries(first, count);
    multiply_by(slope_, {v_, height_});
    if (form_.log_features) {
      apply_features_of_keys();
    } else {
      if (tokens_.log_decay) fade_tile([&](int64_t j) { return log_at_end(j); });
      transpose(k_, kChunk, width_, k_turned_, kChunk);
      if (form_.causal) multiply_queries_and_keys();
    }
    if (gradients_.dlog_decay) write_gradients_of_decays(first, count, chunk);
    if (form_.causal && !form_.log_features) add_pairs_to_keys(count);
    for (int64_t j = 0; j < count; ++j)
      add_gradients_of_key(first + j, weight_[j], tile_ + j * width_);
    if (gradients_.dv) add_gradients_of_values(first, count);
    if (form_.causal) add_queries_read(first, count);
  }

  void add_queries(int64_t first) {
    const int64_t count = count_of(first, tokens_.queries);
    use(0);
    read_slopes(first, count);
    read_queries(first, count);
    decays_ = decays_at(first, count);
    add_queries_read(first, count);
  }

 private:
  static constexpr int kStep = kLanesOf<Number>;

  Gradient(const LinearForm& form, Scratch scratch)
      : form_(form),
        features_(form.features),
        width_(padded(form.features)),
        values_(form.values),
        height_(padded(form.values + 1)) {
    state_ = turned_sums(scratch);
    slope_ = turned_sums(scratch);
    kept_ = scratch.take<Number>(width_);
    q_rows_ = scratch.take<Number>(kChunk * width_);
    k_rows_ = scratch.take<Number>(kChunk * width_);
    k_turned_ = scratch.take<Number>(kChunk * width_);
    features_rows_ = scratch.take<Number>(kChunk * width_);
    tile_ = scratch.take<Number>(kChunk * width_);
    pair_tile_ = scratch.take<Number>(kChunk * width_);
    v_ = scratch.take<Number>(kChunk * height_);
    faded_ = scratch.take<Number>(kChunk * height_);
    rows_turned_ = scratch.take<Number>(kChunk * height_);
    all_rows_ = scratch.take<Number>(kLinearPiece * height_);
    left_ = scratch.take<Number>(kPairs);
    all_dots_ = scratch.take<Number>(kChunks * kPairs);
    all_pairs_ = scratch.take<Number>(kChunks * kPairs);
    if (form.causal) {
      states_ = scratch.take<Number>(kChunks * height_ * width_);
      states_peaks_ = scratch.take<Number>(kChunks * width_);
    }
    used_ = scratch.bytes() / static_cast<int64_t>(sizeof(Number));
  }

  TurnedSums<Number> turned_sums(Scratch& scratch) const {
    return {features_,
            values_,
            width_,
            height_,
            scratch.take<Number>(height_ * width_),
            {scratch.take<Number>(width_)}};
  }

  static int64_t count_of(int64_t first, int64_t all) {
    return all - first < kChunk ? all - first : kChunk;
  }

  void use(int64_t chunk) {
    rows_ = all_rows_ + chunk * kChunk * height_;
    dots_ = all_dots_ + chunk * kPairs;
    pairs_ = all_pairs_ + chunk * kPairs;
    decays_ = {};
  }

  Decays decays_at(int64_t first, int64_t count) const {
    return decays_of(tokens_.log_decay ? tokens_.log_decay + first : nullptr, count);
  }

  void read_slopes(int64_t first, int64_t count) {
    for (int64_t t = 0; t < kChunk; ++t) {
      Number* const row = rows_ + t * height_;
      if (t < count)
        slopes_of(form_, slopes_, first + t, row, height_);
      else
        for (int64_t i = 0; i < height_; ++i) row[i] = 0;
    }
  }

  void read_queries(int64_t first, int64_t count) {
    const auto rest = static_cast<Number>(form_.log_features ? kNever : 0);
    q_ = {tokens_.q + first * tokens_.q_stride, tokens_.q_stride};
    if (is_packed(count, features_)) return;
    pack(q_, count, features_, static_cast<const Number*>(nullptr), rest, q_rows_,
         width_);
    q_ = {q_rows_, width_};
  }

  // Keys of weight 0 are read as if they were not there; the others, unless they are
  // logs, times their weights.
  void read_keys(int64_t first, int64_t count) {
    const Number* const weights = tokens_.weights ? tokens_.weights + first : nullptr;
    decays_ = decays_at(first, count);
    pack({tokens_.v + first * tokens_.v_stride, tokens_.v_stride}, count, values_,
         weights, Number{0}, v_, height_);
    for (int64_t j = 0; j < kChunk; ++j) {
      weight_[j] = weights && j < count ? weights[j] : 1;
      v_[j * height_ + values_] = j < count && weight_[j] != 0;
    }
    k_ = {tokens_.k + first * tokens_.k_stride, tokens_.k_stride};
    if (!weights && is_packed(count, features_)) return;
    const auto rest = static_cast<Number>(form_.log_features ? kNever : 0);
    pack(k_, count, features_, weights, rest, k_rows_, width_);
    k_ = {k_rows_, width_};
    if (!weights || form_.log_features) return;
    for (int64_t j = 0; j < count; ++j)
      multiply(k_[j], weight_[j], width_, k_rows_ + j * width_);
  }

  double log_at_end(int64_t j) const {
    return slope_.scale.log_scale + decays_.total - decays_.until[j];
  }

  // tile_[i] = sums^T rows[i].
  void multiply_by(const TurnedSums<Number>& sums, Rows<Number> rows) {
    each_block<Number>(
        kChunk, width_,
        [&](auto& block, int64_t row, int64_t column) __attribute__((always_inline)) {
          block.clear();
          block.add_products([&](int i, int64_t c) { return rows[row + i][c]; },
                             [&](int64_t c) { return sums.sums + c * width_ + column; },
                             0, values_ + 1);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            store(sum, tile_ + (row + i) * width_ + column + j * kStep);
          });
        });
  }

  template <class Log>
  void fade_tile(const Log& log) {
    alignas(64) Number left[kChunk];
    exponentials(log, left);
    for (int64_t i = 0; i < kChunk; ++i)
      multiply(tile_ + i * width_, left[i], width_, tile_ + i * width_);
  }

  void apply_features_to_tile() {
    for (int64_t i = 0; i < kChunk * width_; i += kStep)
      store(load(tile_ + i) * load(features_rows_ + i), tile_ + i);
  }

  void apply_features_of_queries(int64_t first, int64_t count) {
    Number below[kChunk] = {};
    for (int64_t t = 0; t < count; ++t) below[t] = -slopes_.scale[first + t];
    state_.scale.apply(q_, width_, below, decays_.until, features_rows_);
    apply_features_to_tile();
  }

  void apply_features_of_keys() {
    const Number none[kChunk] = {};
    slope_.scale.apply(k_, width_, none, decays_.after, features_rows_);
    apply_features_to_tile();
    for (int64_t j = 0; j < kChunk; ++j)
      multiply(features_rows_ + j * width_, weight_[j], width_,
               features_rows_ + j * width_);
    transpose({features_rows_, width_}, kChunk, width_, k_turned_, kChunk);
  }

  // dots_[j][t]: the slope of the weight of key j at query t; of features that are not
  // logs, times what is left of the key. 0 if it is later.
  void multiply_slopes_and_values() {
    each_block<Number>(
        kChunk, kChunk,
        [&](auto& block, int64_t key, int64_t query) __attribute__((always_inline)) {
          block.clear();
          block.add_products(
              [&](int i, int64_t c) { return v_[(key + i) * height_ + c]; },
              [&](int64_t c) { return rows_turned_ + c * kChunk + query; }, 0,
              values_ + 1);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            const int64_t first = query + j * kStep;
            store(select(lanes_from(key + i, first), sum, Vector<Number>{}),
                  dots_ + (key + i) * kChunk + first);
          });
        });
    if (!tokens_.log_decay || form_.log_features) return;
    find_what_is_left();
    for (int64_t i = 0; i < kPairs; i += kStep)
      store(load(dots_ + i) * load(left_ + i), dots_ + i);
  }

  // left_[j][t]: of key j at query t.
  void find_what_is_left() {
    for (int64_t j = 0; j < kChunk; ++j)
      exponentials(
          [&](int64_t t) {
            return t < j ? kNever : decays_.until[t] - decays_.until[j];
          },
          left_ + j * kChunk);
  }

  // pairs_[t][j] = q_t . k_j, 0 if the key is later.
  void multiply_queries_and_keys() {
    each_block<Number>(
        kChunk, kChunk,
        [&](auto& block, int64_t query, int64_t key) __attribute__((always_inline)) {
          block.clear();
          block.add_products([&](int i, int64_t f) { return q_[query + i][f]; },
                             [&](int64_t f) { return k_turned_ + f * kChunk + key; }, 0,
                             features_);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            const int64_t first = key + j * kStep;
            store(select(~lanes_from(query + i + 1, first), sum, Vector<Number>{}),
                  pairs_ + (query + i) * kChunk + first);
          });
        });
  }

  void add_pairs_to_queries(int64_t count) {
    each_block<Number>(
        kChunk, width_,
        [&](auto& block, int64_t query, int64_t column) __attribute__((always_inline)) {
          const int64_t end = query + rows_of(block);
          Number* const to = tile_ + query * width_ + column;
          block.each([&](int i, int j, Vector<Number>& sum) {
            sum = load(to + i * width_ + j * kStep);
          });
          block.add_products(
              [&](int i, int64_t j) { return dots_[j * kChunk + query + i]; },
              [&](int64_t j) { return k_[j] + column; }, 0, end < count ? end : count);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            store(sum, to + i * width_ + j * kStep);
          });
        });
  }

  void add_pairs_to_keys(int64_t count) {
    each_block<Number>(
        kChunk, width_,
        [&](auto& block, int64_t key, int64_t column) __attribute__((always_inline)) {
          Number* const to = tile_ + key * width_ + column;
          block.each([&](int i, int j, Vector<Number>& sum) {
            sum = load(to + i * width_ + j * kStep);
          });
          block.add_products(
              [&](int i, int64_t t) { return dots_[(key + i) * kChunk + t]; },
              [&](int64_t t) { return q_[t] + column; }, key, count);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            store(sum, to + i * width_ + j * kStep);
          });
        });
  }

  // The pairs of a chunk of log features, feature by feature as in the forward pass.
  void add_pairs_of_logs(int64_t first, int64_t count) {
    for (int64_t i = 0; i < kPairs; ++i) pairs_[i] = 0;
    for (int64_t i = 0; i < kChunk * width_; ++i) pair_tile_[i] = 0;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t j = 0; j <= t; ++j) {
        const Number scale = slopes_.scale[first + t], dot = dots_[j * kChunk + t];
        const auto decay = static_cast<Number>(decays_.until[t] - decays_.until[j]);
        const Number weighted = dot * weight_[j];
        Number* const of_query = tile_ + t * width_;
        Number* const of_key = pair_tile_ + j * width_;
        Vector<Number> sum{};
        for (int64_t i = 0; i < width_; i += kStep) {
          const Vector<Number> x =
              exp((load(q_[t] + i) + (load(k_[j] + i) - scale)) + decay);
          sum += x;
          store(load(of_query + i) + x * weighted, of_query + i);
          store(load(of_key + i) + x * dot, of_key + i);
        }
        pairs_[t * kChunk + j] = sum_of<Number>(sum) * weight_[j];
      }
    for (int64_t j = 0; j < count; ++j)
      add_gradients_of_key(first + j, weight_[j], pair_tile_ + j * width_);
  }

  // `row`: the slope of the weighted features of the key, or of their logs.
  void add_gradients_of_key(int64_t key, Number weight, const Number* row) {
    if (gradients_.dk) add(row, weight, features_, gradients_.dk + key * features_);
    if (!gradients_.dweights || weight == 0) return;
    gradients_.dweights[key] +=
        form_.log_features ? sum_of_row(row)
                           : static_cast<Number>(dot(
                                 row, tokens_.k + key * tokens_.k_stride, features_));
  }

  Number sum_of_row(const Number* row) const {
    Vector<Number> sum{};
    for (int64_t i = 0; i < width_; i += kStep) sum += load(row + i);
    return sum_of<Number>(sum);
  }

  void add_gradients_of_values(int64_t first, int64_t count) {
    alignas(64) Number ends[kChunk];
    const bool fades = tokens_.log_decay && !form_.log_features;
    if (fades) {
      exponentials([&](int64_t j) { return log_at_end(j); }, ends);
      if (form_.causal) {
        find_what_is_left();
        transpose({left_, kChunk}, kChunk, kChunk, faded_, kChunk);
        for (int64_t i = 0; i < kPairs; i += kStep)
          store(load(pairs_ + i) * load(faded_ + i), pairs_ + i);
      }
    }
    Number* const turned = rows_turned_;
    each_block<Number>(
        values_, kChunk,
        [&](auto& block, int64_t value, int64_t key) __attribute__((always_inline)) {
          block.clear();
          block.add_products(
              [&](int i, int64_t f) { return slope_.sums[(value + i) * width_ + f]; },
              [&](int64_t f) { return k_turned_ + f * kChunk + key; }, 0, features_);
          if (fades)
            block.each([&](int, int j, Vector<Number>& sum) {
              sum *= load(ends + key + j * kStep);
            });
          if (form_.causal)
            block.add_products(
                [&](int i, int64_t t) { return rows_[t * height_ + value + i]; },
                [&](int64_t t) { return pairs_ + t * kChunk + key; }, 0, count);
          block.each([&](int i, int j, const Vector<Number>& sum) {
            store(sum, turned + (value + i) * kChunk + key + j * kStep);
          });
        });
    transpose({turned, kChunk}, padded(values_), kChunk, faded_, height_);
    for (int64_t j = 0; j < count; ++j)
      add(faded_ + j * height_, Number{1}, values_,
          gradients_.dv + (first + j) * values_);
  }

  void add_keys(int64_t first, int64_t count) {
    Rows<Number> k = k_, v{v_, height_};
    const Number* kept = nullptr;
    Weights<Number> weights;
    if (form_.log_features) {
      for (int64_t j = 0; j < count; ++j)
        split(weight_[j], weights.whole + j, weights.rest + j);
      state_.scale.raise(decays_.total, k_, count, width_, weights.whole, decays_.after,
                         features_rows_, kept_);
      k = {features_rows_, width_};
      kept = kept_;
    } else if (tokens_.log_decay) {
      kept =
          state_.scale.fade(decays_.total, decays_.after, weights.rest, kept_, width_);
    }
    if (form_.log_features ? tokens_.weights != nullptr : tokens_.log_decay != nullptr)
      v = faded(v, weights.rest, count);
    const int64_t next = first + kChunk, later = count_of(next, tokens_.keys);
    Ahead<Number> ahead;
    ahead.add(tokens_.k + next * tokens_.k_stride, tokens_.k_stride, later, features_);
    ahead.add(tokens_.v + next * tokens_.v_stride, tokens_.v_stride, later, values_);
    ahead.add(slopes_.out + next * values_, values_, later, values_);
    if (slopes_.dout) ahead.add(slopes_.dout + next * values_, values_, later, values_);
    state_.add(v, k, count, kept, ahead);
  }

  void add_queries_read(int64_t first, int64_t count) {
    Rows<Number> q = q_, rows{rows_, height_};
    const Number* kept = nullptr;
    Weights<Number> sizes;  // of the slopes, that they do not push others out of range
    if (form_.log_features) {
      for (int64_t t = 0; t < count; ++t) {
        const Number size = size_of(rows[t]);
        split(size, sizes.whole + t, sizes.rest + t);
        sizes.whole[t] -= slopes_.scale[first + t];
        sizes.rest[t] = size == 0 ? 0 : sizes.rest[t] / size;
        if (size == 0) sizes.whole[t] = static_cast<Number>(kNever);
      }
      slope_.scale.raise(decays_.total, q_, count, width_, sizes.whole, decays_.until,
                         features_rows_, kept_);
      q = {features_rows_, width_};
      kept = kept_;
    } else if (tokens_.log_decay) {
      kept = slope_.scale.fade(decays_.total, decays_.until, sizes.rest, kept_, width_);
    }
    if (form_.log_features || tokens_.log_decay) rows = faded(rows, sizes.rest, count);
    const int64_t next = first - kChunk, earlier = next < 0 ? 0 : kChunk;
    Ahead<Number> ahead;
    ahead.add(tokens_.q + next * tokens_.q_stride, tokens_.q_stride, earlier,
              features_);
    if (gradients_.dk)
      ahead.add(gradients_.dk + next * features_, features_, earlier, features_);
    if (gradients_.dv)
      ahead.add(gradients_.dv + next * values_, values_, earlier, values_);
    slope_.add(rows, q, count, kept, ahead);
  }

  Number size_of(const Number* row) const {
    Vector<Number> top{};
    for (int64_t i = 0; i < height_; i += kStep)
      top = larger(larger(load(row + i), -load(row + i)), top);
    return largest_of<Number>(top);
  }

  Rows<Number> faded(Rows<Number> rows, const Number* factors, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      multiply(rows[i], factors[i], height_, faded_ + i * height_);
    return {faded_, height_};
  }

  // What the gradients of the decays need of the way through the queries.
  void remember_state(int64_t chunk, int64_t count) {
    for (int64_t t = 0; t < count; ++t) {
      const Number* const row = tile_ + t * width_;
      from_state_[chunk * kChunk + t] =
          form_.log_features ? sum_of_row(row) : dot(row, q_[t], width_);
    }
    copy(state_.sums, height_ * width_, states_ + chunk * height_ * width_);
    copy(state_.scale.peaks, width_, states_peaks_ + chunk * width_);
    states_scale_[chunk] = state_.scale.log_scale;
  }

  // A decay has the slopes of all terms that pass it: those from before the chunk to
  // after it, to its queries, from its keys, and inside. Differences of sums over all
  // tokens would cancel.
  void write_gradients_of_decays(int64_t first, int64_t count, int64_t chunk) {
    double to_end[kChunk];
    for (int64_t j = 0; j < count; ++j) {
      const Number* const row = tile_ + j * width_;
      to_end[j] =
          form_.log_features ? weight_[j] * sum_of_row(row) : dot(row, k_[j], width_);
    }
    const double through = slope_through(chunk);
    double inside[kChunk] = {};  // of key j, to queries from t on
    double from_state = 0;
    for (int64_t t = count - 1; t >= 0; --t) {
      from_state += from_state_[chunk * kChunk + t];
      double sum = through + from_state;
      for (int64_t j = 0; j < t; ++j) {
        inside[j] += static_cast<double>(pairs_[t * kChunk + j]) *
                     static_cast<double>(dots_[j * kChunk + t]);
        sum += inside[j] + to_end[j];
      }
      gradients_.dlog_decay[first + t] = sum;
    }
  }

  double slope_through(int64_t chunk) const {
    const Number* const sums = states_ + chunk * height_ * width_;
    const Number* const peaks = states_peaks_ + chunk * width_;
    const double log = states_scale_[chunk] + slope_.scale.log_scale + decays_.total;
    Vector<Number> all{};
    for (int64_t i = 0; i < width_; i += kStep) {
      Vector<Number> sum{};
      for (int64_t c = 0; c <= values_; ++c)
        sum += load(sums + c * width_ + i) * load(slope_.sums + c * width_ + i);
      if (form_.log_features)
        sum *= exp((load(peaks + i) + load(slope_.scale.peaks + i)) +
                   static_cast<Number>(log));
      all += sum;
    }
    return sum_of<Number>(all) * (form_.log_features ? 1 : ::exp(log));
  }

  LinearForm form_;
  int64_t features_, width_, values_, height_;
  int64_t used_ = 0;
  LinearTokens<Number> tokens_;
  LinearSlopes<Number> slopes_;
  LinearGradients<Number> gradients_;
  TurnedSums<Number> state_, slope_;

  // Of the chunk. Rows of queries and keys are width_ wide, of values and slopes
  // height_.
  Rows<Number> q_, k_;
  Decays decays_;
  Number weight_[kChunk] = {};
  Number *kept_, *q_rows_, *k_rows_, *k_turned_, *features_rows_, *tile_, *pair_tile_,
      *v_, *faded_, *rows_turned_, *left_;
  Number *rows_, *dots_, *pairs_;

  // Of all chunks of the piece.
  Number *all_rows_, *all_dots_, *all_pairs_;
  Number *states_ = nullptr, *states_peaks_ = nullptr;
  double states_scale_[kChunks] = {}, from_state_[kLinearPiece] = {};
};

template <class Number>
void add_queries(const LinearTokens<Number>& tokens, const LinearSlopes<Number>& slopes,
                 const LinearSums<Number>& slope, Number* scratch) {
  Gradient<Number> gradient(tokens, slopes, {}, scratch);
  gradient.slope().load_from(slope);
  for (int64_t chunk = parts_of(tokens.queries, kChunk); chunk-- > 0;)
    gradient.add_queries(chunk * kChunk);
  gradient.slope().store_to(slope);
}

template <class Number>
void gradients(const LinearTokens<Number>& tokens, const LinearSlopes<Number>& slopes,
               const LinearSums<Number>& states, const LinearSums<Number>& slope,
               const LinearGradients<Number>& wanted, Number* scratch) {
  const LinearForm& form = tokens.form;
  Gradient<Number> gradient(tokens, slopes, wanted, scratch);
  gradient.slope().load_from(slope);
  for (int64_t piece = parts_of(tokens.queries, kLinearPiece); piece-- > 0;) {
    const int64_t first = piece * kLinearPiece;
    const int64_t rest = tokens.queries - first;
    const int64_t chunks = parts_of(rest < kLinearPiece ? rest : kLinearPiece, kChunk);
    gradient.state().load_from(
        {states.sums + piece * form.features * (form.values + 1),
         states.peaks ? states.peaks + piece * form.features : nullptr});
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      gradient.go_through_queries(first + chunk * kChunk, chunk);
    for (int64_t chunk = chunks; chunk-- > 0;)
      gradient.go_through_keys(first + chunk * kChunk, chunk);
  }
  gradient.slope().store_to(slope);
}

template <class Number>
void query_gradients(const LinearTokens<Number>& tokens,
                     const LinearSlopes<Number>& slopes,
                     const LinearSums<Number>& state,
                     const LinearGradients<Number>& wanted, Number* scratch) {
  Gradient<Number> gradient(tokens, slopes, wanted, scratch);
  gradient.state().load_from(state);
  for (int64_t first = 0; first < tokens.queries; first += kChunk)
    gradient.go_through_queries(first, 0);
}

template <class Number>
void key_gradients(const LinearTokens<Number>& tokens, const LinearSums<Number>& slope,
                   const LinearGradients<Number>& wanted, Number* scratch) {
  Gradient<Number> gradient(tokens, {}, wanted, scratch);
  gradient.slope().load_from(slope);
  for (int64_t first = 0; first < tokens.keys; first += kChunk)
    gradient.go_through_keys(first, 0);
}

template <class Number>
constexpr LinearGradientKernels<Number> kKernels = {
    Gradient<Number>::scratch, add_queries<Number>, gradients<Number>,
    query_gradients<Number>, key_gradients<Number>};

}  // namespace

const LinearGradientKernels<float> linear_gradient_of_floats = kKernels<float>;
const LinearGradientKernels<double> linear_gradient_of_doubles = kKernels<double>;

}  // namespace longspan::cpu::LONGSPAN_ISA
