#include "longspan/cli/plain_attention.h"

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>

#ifdef __x86_64__
#define LONGSPAN_EACH_VECTOR_WIDTH \
  __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define LONGSPAN_EACH_VECTOR_WIDTH
#endif

namespace longspan::cli {

using torch::Tensor;

Tensor composite_attention(const Tensors& qkv, const Tensor& hidden) {
  const double scale = 1 / std::sqrt(static_cast<double>(qkv[0].size(-1)));
  Tensor scores = (qkv[0] * scale).matmul(qkv[1].transpose(-2, -1));
  if (hidden.defined())
    scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  return scores.softmax(-1).matmul(qkv[2]);
}

Tensor sliding_chunks(const Tensors& qkv, int64_t window, const Tensor& hidden) {
  const int64_t chunk = 2 * window;
  const auto views = [&](const Tensor& x) {  // [B, H, chunks, 4 * window, d]
    return torch::constant_pad_nd(x, {0, 0, window, window})
        .unfold(2, 4 * window, chunk)
        .transpose(-2, -1);
  };
  const Tensor q = qkv[0].unflatten(2, {qkv[0].size(2) / chunk, chunk});
  return composite_attention({q, views(qkv[1]), views(qkv[2])}, hidden).flatten(2, 3);
}

Tensor hidden_in_sliding_chunks(int64_t length, int64_t window) {
  const int64_t chunk = 2 * window;
  const Tensor first = torch::arange(0, length, chunk).view({-1, 1, 1}),
               query = first + torch::arange(chunk).view({1, -1, 1}),
               key = first - window + torch::arange(4 * window).view({1, 1, -1});
  return ((key - query).abs() > window).logical_or(key < 0).logical_or(key >= length);
}

Tensor linear_chunks(const Tensors& qkv, int64_t chunk) {
  Tensors cut;
  for (const Tensor& x : qkv) cut.push_back(x.unflatten(1, {x.size(1) / chunk, chunk}));
  const auto before = [](const Tensor& sums) { return sums.cumsum(1) - sums; };
  const Tensor &q = cut[0], &v = cut[2], keys = cut[1].transpose(-2, -1);
  const Tensor scores = q.matmul(keys).tril_();
  const Tensor sums = before(keys.matmul(v)), weights = before(keys.sum(-1, true));
  const Tensor out = scores.matmul(v).add_(q.matmul(sums));
  return out.div_(scores.sum(-1, true).add_(q.matmul(weights))).flatten(1, 2);
}

namespace {

constexpr int64_t kWidth = 64;

// One head. Plain loops over memory, of which the compiler makes vectors.
LONGSPAN_EACH_VECTOR_WIDTH
void recur_in_memory(const float* q, const float* k, const float* v, int64_t length,
                     float* out) {
  std::vector<float> sums(kWidth * kWidth), weights(kWidth);
  for (int64_t token = 0; token < length; ++token) {
    float weight = 0;
    for (int64_t j = 0; j < kWidth; ++j) out[j] = 0;
    for (int64_t i = 0; i < kWidth; ++i) {
      weights[i] += k[i];
      weight += q[i] * weights[i];
      for (int64_t j = 0; j < kWidth; ++j) {
        const float sum = sums[i * kWidth + j] + k[i] * v[j];
        sums[i * kWidth + j] = sum;
        out[j] += q[i] * sum;
      }
    }
    for (int64_t j = 0; j < kWidth; ++j) out[j] /= weight;
    q += kWidth;
    k += kWidth;
    v += kWidth;
    out += kWidth;
  }
}

// The same arranged so that the row of a token stays in registers.
LONGSPAN_EACH_VECTOR_WIDTH
void recur_in_registers(const float* q, const float* k, const float* v, int64_t length,
                        float* out) {
  constexpr int64_t kParts = 16;
  alignas(64) float state[kWidth][kWidth] = {}, weights[kWidth] = {};
  for (int64_t token = 0; token < length; ++token) {
    alignas(64) float row[kWidth] = {}, parts[kParts] = {};
    for (int64_t i = 0; i < kWidth; ++i) {
      for (int64_t j = 0; j < kWidth; ++j) {
        state[i][j] += k[i] * v[j];
        row[j] += q[i] * state[i][j];
      }
      weights[i] += k[i];
    }
    for (int64_t i = 0; i < kWidth; i += kParts)
      for (int64_t j = 0; j < kParts; ++j) parts[j] += q[i + j] * weights[i + j];
    float sum = 0;
    for (int64_t j = 0; j < kParts; ++j) sum += parts[j];
    for (int64_t j = 0; j < kWidth; ++j) out[j] = row[j] / sum;
    q += kWidth;
    k += kWidth;
    v += kWidth;
    out += kWidth;
  }
}

}  // namespace

Tensor linear_recurrence(const Tensors& qkv, bool in_registers) {
  Tensor out = torch::empty_like(qkv[2]);
  const int64_t length = out.size(1);
  at::parallel_for(0, out.size(0), 1, [&](int64_t from, int64_t to) {
    for (int64_t head = from; head < to; ++head) {
      const auto at = [&](const Tensor& x) {
        return x.data_ptr<float>() + head * length * kWidth;
      };
      (in_registers ? recur_in_registers : recur_in_memory)(
          at(qkv[0]), at(qkv[1]), at(qkv[2]), length, at(out));
    }
  });
  return out;
}

}  // namespace longspan::cli
