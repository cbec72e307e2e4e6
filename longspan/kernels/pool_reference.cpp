#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "longspan/kernels/pool.h"
#include "longspan/kernels/pool_call.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `kept`: [B, H, G, N] bool or less that can be broadcast to it: which tokens a row
// pools.
Pooled pool_by_weights(const PoolInputs& inputs, const Tensor& kept, Pooling how) {
  const auto dtype = inner_dtype(inputs.x);
  const auto give = [&](const Tensor& weights, const Tensor& counts) {
    // Without weight no value counts, not even one that is not finite.
    const Tensor x = inputs.x.to(dtype).masked_fill(~counts.unsqueeze(-1), 0);
    const auto sizes = inputs.x.sizes();
    return weights.expand({sizes[0], sizes[1], kept.size(-2), sizes[2]})
        .matmul(x)
        .to(inputs.x.scalar_type());
  };
  const Tensor all = torch::ones({1, 1, 1}, kept.options());
  const Tensor counts = inputs.keep.defined() ? inputs.keep : all;
  if (how != Pooling::softmax) {
    const Tensor weights = kept.to(dtype);
    if (how == Pooling::sum) return {.out = give(weights, counts)};
    return {.out =
                give(weights / weights.sum(-1, /*keepdim=*/true).clamp_min(1), counts)};
  }
  const Tensor scores = inputs.scores.to(dtype);
  const Tensor seen = scores.unsqueeze(2).masked_fill(~kept, -kInfinity);
  Tensor base = seen.detach().logsumexp(-1, /*keepdim=*/true);
  base = base.masked_fill(base == -kInfinity, 0);
  const Tensor weights = (seen - base).exp();
  const Tensor total = weights.sum(-1, /*keepdim=*/true);
  const Tensor nothing = total == 0;
  const Tensor divisor = total.masked_fill(nothing, 1);
  return {.out = give(weights / divisor, counts & (scores != -kInfinity)),
          .lse = (base + divisor.log()).masked_fill(nothing, -kInfinity).squeeze(-1)};
}

// [.., 1, N] bool, to be broadcast to [B, H, G, N].
Tensor kept_of(const PoolInputs& inputs) {
  if (inputs.keep.defined()) return inputs.keep.unsqueeze(2);
  return torch::ones({1, 1, 1, 1}, inputs.x.options().dtype(torch::kBool));
}

}  // namespace

Pooled pool_spans_reference(const PoolInputs& inputs, const std::vector<Span>& spans,
                            Pooling how) {
  check(inputs, spans, how);
  const Tensor& x = inputs.x;
  const Tensor kept = kept_of(inputs);
  if (how != Pooling::max) {
    const Tensor ends = as_tensor(spans).to(x.device());
    const Tensor token = torch::arange(x.size(2), ends.options());
    const Tensor within =
        (token >= ends.slice(1, 0, 1)) & (token < ends.slice(1, 1, 2));
    return pool_by_weights(inputs, kept & within, how);
  }
  const Tensor none = x.new_zeros({x.size(0), x.size(1), 1, x.size(3)});
  std::vector<Tensor> rows = {none.slice(2, 0, 0)};
  const Tensor keep = kept.transpose(2, 3).expand({-1, -1, x.size(2), 1});
  for (const auto& [from, to] : spans) {
    const Tensor some = keep.slice(2, from, to);
    rows.push_back(from == to ? none
                              : std::get<0>(x.slice(2, from, to)
                                                .masked_fill(~some, -kInfinity)
                                                .max(2, /*keepdim=*/true))
                                    .masked_fill(~some.any(2, /*keepdim=*/true), 0));
  }
  return {.out = torch::cat(rows, 2)};
}

Pooled pool_prefixes_reference(const PoolInputs& inputs, int64_t segment, Pooling how) {
  check(inputs, segment, how);
  const Tensor& x = inputs.x;
  const Tensor kept = kept_of(inputs);
  const int64_t length = real_length(segment, x);
  const Tensor token = torch::arange(x.size(2), x.options().dtype(torch::kLong));
  if (how != Pooling::max) {
    const Tensor row = token.unsqueeze(1);
    const Tensor within = (token <= row) & (token >= row - row.remainder(length));
    return pool_by_weights(inputs, kept & within, how);
  }
  if (x.size(2) == 0) return {.out = x.clone()};

  // [B, H, segments, length, d]
  const int64_t missing = (length - x.size(2) % length) % length;
  const auto in_segments = [&](const Tensor& y) {
    return torch::constant_pad_nd(y, {0, 0, 0, missing})
        .unflatten(2, {(x.size(2) + missing) / length, length});
  };
  const Tensor keep = in_segments(kept.transpose(2, 3).expand({-1, -1, x.size(2), 1}));
  const Tensor values = in_segments(x).masked_fill(~keep, -kInfinity);
  const Tensor largest = std::get<0>(values.detach().cummax(3));
  // The first of equal largest; cummax() would name the last.
  const Tensor before = largest.slice(3, 0, length - 1), after = largest.slice(3, 1);
  const Tensor is_new = torch::constant_pad_nd(
      (after > before) | (after.isnan() & ~before.isnan()), {0, 0, 1, 0});
  const Tensor place = torch::arange(length, token.options()).unsqueeze(-1);
  const Tensor places = std::get<0>(is_new.to(torch::kLong).mul(place).cummax(3));
  return {.out = values.gather(3, places)
                     .masked_fill(keep.cumsum(3) == 0, 0)
                     .flatten(2, 3)
                     .slice(2, 0, x.size(2))};
}

}  // namespace longspan
