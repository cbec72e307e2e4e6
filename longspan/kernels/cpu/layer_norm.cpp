#include "longspan/kernels/cpu/layer_norm.h"

#include "longspan/kernels/cpu/vec.h"
#include "longspan/kernels/cpu/vec_sums.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

constexpr int kChains = 4;  // sums that do not wait for each other

// step(i, count, chain) for the vectors of a row: `count` floats from the i-th on, the
// last perhaps fewer than kLanes.
template <class Step>
[[gnu::always_inline]] inline void along(int64_t width, Step step) {
  int64_t i = 0;
  for (; i + kChains * kLanes <= width; i += kChains * kLanes)
    for (int chain = 0; chain < kChains; ++chain)
      step(i + chain * kLanes, kLanes, chain);
  for (; i + kLanes <= width; i += kLanes) step(i, kLanes, 0);
  if (i < width) step(i, width - i, 1);
}

double sum(const Floats (&chains)[kChains]) {
  return sum_in_double((chains[0] + chains[1]) + (chains[2] + chains[3]));
}

// x - mean, with a mean finer than floats.
class Centre {
 public:
  explicit Centre(double mean)
      : mean_(static_cast<float>(mean)), rest_(static_cast<float>(mean - mean_)) {}

  Floats operator()(const Floats& x) const { return (x - mean_) - rest_; }

 private:
  float mean_, rest_;
};

}  // namespace

void layer_norm(const LayerNormRows<float>& rows) {
  const int64_t width = rows.width;
  const auto size = static_cast<double>(width);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const float* x = rows.x + row * width;
    float* y = rows.y + row * width;

    Floats sums[kChains] = {};
    along(width, [&](int64_t i, int64_t count, int chain) {
      sums[chain] += load(x + i, count);
    });
    const auto guess = static_cast<float>(sum(sums) / size);

    // Around the rounded mean, and then corrected for the rounding.
    Floats offs[kChains] = {}, squares[kChains] = {};
    along(width, [&](int64_t i, int64_t count, int chain) {
      const Floats off = first(load(x + i, count) - guess, count);
      offs[chain] += off;
      squares[chain] += off * off;
    });
    const double shift = sum(offs) / size;
    const double variance = sum(squares) / size - shift * shift;
    const double mean = guess + shift;
    const auto rstd = static_cast<float>(
        1 / __builtin_sqrt((variance > 0 ? variance : 0) + rows.epsilon));
    rows.mean[row] = mean;
    rows.rstd[row] = rstd;

    const Centre centred(mean);
    along(width, [&](int64_t i, int64_t count, int) {
      Floats out = centred(load(x + i, count)) * rstd;
      if (rows.weight) out *= load(rows.weight + i, count);
      if (rows.bias) out += load(rows.bias + i, count);
      store(out, y + i, count);
    });
  }
}

void layer_norm_gradient(const LayerNormGradientRows<float>& rows) {
  const int64_t width = rows.width;
  const auto size = static_cast<double>(width);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const float* x = rows.x + row * width;
    const float* dy = rows.dy + row * width;
    const Centre centred(rows.mean[row]);
    const float rstd = rows.rstd[row];

    // With z = (x - mean) * rstd and g = dy * weight:
    // dx = rstd * (g - average of g - z * average of g * z)
    Floats gs[kChains] = {}, gzs[kChains] = {};
    along(width, [&](int64_t i, int64_t count, int chain) {
      const Floats d = load(dy + i, count);
      const Floats z = centred(load(x + i, count)) * rstd;
      if (rows.dbias) add(d, broadcast(1.0f), rows.dbias + i, count);
      if (rows.dweight) add(d, z, rows.dweight + i, count);
      const Floats g = rows.weight ? d * load(rows.weight + i, count) : d;
      gs[chain] += g;
      gzs[chain] += g * z;
    });
    if (!rows.dx) continue;

    const auto g_average = static_cast<float>(sum(gs) / size);
    const auto gz_average = static_cast<float>(sum(gzs) / size);
    // A row of one has no slope; what is fused in one sum and not in the other would
    // give it some.
    const float scale = width > 1 ? rstd : 0;
    float* dx = rows.dx + row * width;
    along(width, [&](int64_t i, int64_t count, int) {
      const Floats d = load(dy + i, count);
      const Floats z = centred(load(x + i, count)) * rstd;
      const Floats g = rows.weight ? d * load(rows.weight + i, count) : d;
      store((g - g_average - z * gz_average) * scale, dx + i, count);
    });
  }
}

}  // namespace longspan::cpu::LONGSPAN_ISA
