// bfloat16 by the instruction that multiplies pairs of them and adds in float.

#include "longspan/kernels/cpu/attend_tile.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

using Pairs = Vector<uint32_t>;  // of bfloat16, the first in the lower half

inline Floats add_pairs(const Floats& sum, const Pairs& a, const Pairs& b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a),
                          reinterpret_cast<__m512bh>(b));
}

inline Pairs load_pairs(const uint32_t* from) {
  Pairs x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline float to_float(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// Scores in float; weights rounded to bfloat16 before they meet the values.
class Bfloat16Arithmetic {
 public:
  using Number = float;
  using Stored = uint16_t;
  using Task = AttendTask<float, uint16_t>;
  using Batch = KeyBatch<uint16_t>;

  Bfloat16Arithmetic(const Task& task, Scratch& scratch)
      : task_(task),
        queries_(scratch.take<uint32_t>(task.width / 2 * kTile)),
        scaled_queries_(scratch.take<float>(task.width * kTile)),
        scores_(scratch.take<float>(kTile * kTile)),
        weights_(scratch.take<uint32_t>(kTile / 2 * kTile)),
        values_(scratch.take<uint32_t>(kTile / 2 * task.value_width)) {}

  void take_queries(const QueryTile& queries, float scale) {
    scale_ = scale;
    for (int64_t lane = 0; lane < kTile; ++lane) {
      const uint16_t* const row =
          task_.queries.q + queries.row[lane] * task_.queries.stride;
      for (int64_t x = 0; x < task_.width / 2; ++x) {
        uint32_t pair = 0;
        if (queries.has(lane)) std::memcpy(&pair, row + 2 * x, sizeof pair);
        queries_[x * kTile + lane] = pair;
      }
    }
    bool has_vectors = false;
    for (int64_t s = 0; s < task_.source_count; ++s)
      has_vectors |= task_.sources[s].bias.vectors != nullptr;
    if (!has_vectors) return;
    for (int64_t i = 0; i < task_.width / 2 * kTile; ++i) {
      const int64_t place = i / kTile * 2 * kTile + i % kTile;
      scaled_queries_[place] = scale * to_float(static_cast<uint16_t>(queries_[i]));
      scaled_queries_[place + kTile] =
          scale * to_float(static_cast<uint16_t>(queries_[i] >> 16));
    }
  }

  const float* scaled_queries() const { return scaled_queries_; }

  // Two keys side by side.
  void take_values(const Batch& batch) {
    for (int64_t key = 0; key < batch.blocks_end(); key += 2) {
      uint32_t* const to = values_ + key / 2 * task_.value_width;
      const uint16_t *const first = batch.v[key], *const second = batch.v[key + 1];
      for (int64_t x = 0; x < task_.value_width; ++x)
        to[x] = first[x] | uint32_t{second[x]} << 16;
    }
  }

  template <int vectors>
  [[gnu::noinline]] void score(const Batch& batch, const float* bias, int64_t lane,
                               int64_t key, Floats (&most)[vectors]) {
    constexpr int kRows = rows_of_block(vectors);
    Block<float, kRows, vectors> sums;
    sums.clear();
    const uint16_t* const* const k = batch.k + key;
    add_pair_products(
        sums,
        [&](int i, int64_t x) {
          uint32_t pair;
          std::memcpy(&pair, k[i] + 2 * x, sizeof pair);
          return pair;
        },
        [&](int64_t x) { return queries_ + x * kTile + lane; }, 0, task_.width / 2);
    sums.each([&](int i, int j, Floats& sum) {
      sum *= scale_;
      if (bias) sum += load(bias + (key + i) * kTile + lane + j * kLanes);
      if (batch.masked)
        sum = select(batch.bits[key + i] >> (lane + j * kLanes), sum,
                     broadcast(kNothing<float>));
      most[j] = larger(most[j], sum);
      store(sum, scores_ + (key + i) * kTile + lane + j * kLanes);
    });
  }

  template <int vectors>
  void weigh(const uint64_t* kept, int64_t lane, const KeyRange& keys,
             const Floats (&shift)[vectors], Floats (&sum)[vectors]) {
    const auto factor = static_cast<float>(task_.dropout.factor);
    const auto weight_of = [&](int64_t key, int j) {
      const Floats weight =
          exp2(load(scores_ + key * kTile + lane + j * kLanes) - shift[j]);
      sum[j] += weight;
      return kept ? select(kept[key] >> (lane + j * kLanes), weight * factor, Floats{})
                  : weight;
    };
    for (int64_t key = keys.from; key < keys.to; key += 2)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        const Floats first = weight_of(key, j), second = weight_of(key + 1, j);
        const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
        const auto pairs = reinterpret_cast<Pairs>(
            _mm512_maskz_permutexvar_epi16(~__mmask32{0}, side_by_side(), both));
        std::memcpy(weights_ + key / 2 * kTile + lane + j * kLanes, &pairs,
                    sizeof pairs);
      }
  }

  template <int rows, int vectors>
  void add_values(Block<float, rows, vectors>& sums, const Batch&, int64_t lane,
                  const KeyRange& keys, int64_t column) {
    add_pair_products(
        sums,
        [&](int i, int64_t pair) {
          return values_[pair * task_.value_width + column + i];
        },
        [&](int64_t pair) { return weights_ + pair * kTile + lane; }, keys.from / 2,
        keys.to / 2);
  }

  static void put(const float* from, int64_t width, const float* factors,
                  const QueryTile& queries, uint16_t* out, int64_t stride) {
    const auto rows = queries.in(out, stride);
    for (int64_t lane = 0; lane < kTile; ++lane)
      if (uint16_t* const row = rows(lane))
        for (int64_t x = 0; x < width; ++x)
          row[x] = rounded(from[x * kTile + lane] * factors[lane]);
  }

 private:
  // The nearest, of two the even one.
  static uint16_t rounded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

  // As Block::add_products, of pairs.
  template <int rows, int vectors, class Left, class Right>
  [[gnu::always_inline]] static void add_pair_products(
      Block<float, rows, vectors>& sums, const Left& left, const Right& right,
      int64_t from, int64_t to) {
#pragma GCC unroll 2
    for (int64_t x = from; x < to; ++x) {
      const uint32_t* const row = right(x);
      Pairs b[vectors];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) b[j] = load_pairs(row + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const Pairs a = left(i, x) - Pairs{};
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j)
          sums.at[i][j] = add_pairs(sums.at[i][j], a, b[j]);
      }
    }
  }

  // Lane i of the lower half, lane i of the upper half, lane i + 1 of the lower ..
  static __m512i side_by_side() {
    Vector<uint16_t> order;
    for (int i = 0; i < 16; ++i) {
      order[2 * i] = static_cast<uint16_t>(i);
      order[2 * i + 1] = static_cast<uint16_t>(16 + i);
    }
    return reinterpret_cast<__m512i>(order);
  }

  const Task& task_;
  float scale_ = 0;
  uint32_t* queries_;      // [width / 2, 64]
  float* scaled_queries_;  // [width, 64]: times scale * log2(e), for vectors of biases
  float* scores_;          // [keys, 64]
  uint32_t* weights_;      // [keys / 2, 64]
  uint32_t* values_;       // [keys / 2, value width]
};

}  // namespace

int64_t attend_bytes(const AttendTask<float, uint16_t>& task) {
  return bytes_by<Bfloat16Arithmetic>(task);
}
void attend(const AttendTask<float, uint16_t>& task) {
  attend_by<Bfloat16Arithmetic>(task);
}

}  // namespace longspan::cpu::LONGSPAN_ISA
