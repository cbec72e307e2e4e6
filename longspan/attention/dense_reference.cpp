#include "longspan/attention/dense_reference.h"

#include <cmath>

namespace longspan {
namespace {

using torch::Tensor;

// [B|1, n] on `device`: given, or counted from `first`.
Tensor positions_or(const Tensor& given, int64_t first, int64_t count,
                    torch::Device device) {
  const auto options = torch::TensorOptions(torch::kLong).device(device);
  const Tensor positions = given.defined()
                               ? given.to(options)
                               : torch::arange(first, first + count, options);
  return positions.dim() == 1 ? positions.unsqueeze(0) : positions;
}

}  // namespace

Tensor allowed_pairs(const Pass& pass, int64_t queries, int64_t keys,
                     torch::Device device) {
  const Stream known = pass.keys(queries, keys);
  auto allowed = torch::ones({1, 1, queries, keys},
                             torch::TensorOptions(torch::kBool).device(device));
  if (pass.mask.causal) {
    const auto q = positions_or(pass.positions, keys - queries, queries, device);
    const auto k = positions_or(known.positions, 0, keys, device);
    allowed = allowed & (q.unsqueeze(2) >= k.unsqueeze(1)).unsqueeze(1);
  }
  if (known.tokens.defined())
    allowed = allowed & known.tokens.to(device).unsqueeze(1).unsqueeze(1);
  if (pass.mask.segment.defined()) {
    const auto segment = pass.mask.segment.to(device);
    allowed = allowed & (segment.unsqueeze(2) == segment.unsqueeze(1)).unsqueeze(1);
  }
  return allowed;
}

double hidden_score(torch::Dtype type) { return type == torch::kHalf ? -65504 : -3e38; }

Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& visible, const Pass& pass,
                        std::optional<double> scale) {
  const double by = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const int64_t group = q.size(1) / k.size(1), queries = q.size(2), keys = k.size(2);
  auto scores = by * q.matmul(k.repeat_interleave(group, 1).transpose(2, 3));
  if (pass.bias.defined())
    scores = scores +
             bias_scores(
                 pass.bias, q, by,
                 positions_or(pass.positions, keys - queries, queries, q.device())
                     .unsqueeze(1),
                 positions_or(pass.keys(queries, keys).positions, 0, keys, q.device())
                     .unsqueeze(1));
  const auto hidden = visible.logical_not();
  const auto weights = scores.masked_fill(hidden, hidden_score(q.scalar_type()))
                           .softmax(-1)
                           .masked_fill(hidden, 0);
  return weights.matmul(v.repeat_interleave(group, 1));
}

}  // namespace longspan
