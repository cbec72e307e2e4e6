#include "longspan/kernels/pool_call.h"

#include <algorithm>
#include <limits>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kWho[] = "pooling: ";

void check(const PoolInputs& inputs, Pooling how) {
  const auto& [x, keep, scores] = inputs;
  require(x.defined() && x.dim() == 4 && x.size(3) >= 1, kWho,
          "x must be [B, H, N, d] with d of 1 or more, got ", shape(x));
  const auto dtype = x.scalar_type();
  const bool is_short = dtype == torch::kBFloat16 || dtype == torch::kHalf;
  require(dtype == torch::kFloat || dtype == torch::kDouble || is_short, kWho,
          "x must be float, double, bfloat16 or half, got ", dtype);
  require(x.size(2) <= std::numeric_limits<int32_t>::max(), kWho,
          "x must have at most 2147483647 tokens, got ", x.size(2));
  if (keep.defined()) {
    const auto fits = [&](int64_t axis) {
      return keep.size(axis) == 1 || keep.size(axis) == x.size(axis);
    };
    require(keep.dim() == 3 && fits(0) && fits(1) && keep.size(2) == x.size(2), kWho,
            "keep must be [B|1, H|1, N] for x of ", shape(x), ", got ", shape(keep));
    require(keep.scalar_type() == torch::kBool, kWho, "keep must be bool, got ",
            keep.scalar_type());
    require(keep.device() == x.device(), kWho, "keep must be on ", x.device(),
            ", where x is, got ", keep.device());
  }
  if (how != Pooling::softmax) {
    require(!scores.defined(), kWho, "only softmax takes scores, got ", shape(scores));
    return;
  }
  require(scores.defined() && scores.sizes() == x.sizes().slice(0, 3), kWho,
          "scores of softmax must be ", x.sizes().slice(0, 3), ", got ", shape(scores));
  require(scores.scalar_type() == dtype ||
              (is_short && scores.scalar_type() == torch::kFloat),
          kWho, "scores must be ", dtype, is_short ? " or Float" : "", " where x is ",
          dtype, ", got ", scores.scalar_type(), "; convert one of them");
  require(scores.device() == x.device(), kWho, "scores must be on ", x.device(),
          ", where x is, got ", scores.device());
}

}  // namespace

void check(const PoolInputs& inputs, const std::vector<Span>& spans, Pooling how) {
  check(inputs, how);
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto [from, to] = spans[i];
    require(0 <= from && from <= to && to <= inputs.x.size(2), kWho, "span ", i,
            " must lie within 0..", inputs.x.size(2), ", got ", from, "..", to);
  }
}

void check(const PoolInputs& inputs, int64_t segment, Pooling how) {
  check(inputs, how);
  require(segment >= 0, kWho, "segments must have 1 token or more, or 0 for all, got ",
          segment);
}

int64_t real_length(int64_t segment, const Tensor& x) {
  const int64_t all = std::max<int64_t>(1, x.size(2));
  return segment == 0 ? all : std::min(segment, all);
}

Tensor as_tensor(const std::vector<Span>& spans) {
  Tensor result = torch::empty({static_cast<int64_t>(spans.size()), 2}, torch::kLong);
  int64_t* to = result.data_ptr<int64_t>();
  for (const Span& span : spans) {
    *to++ = span.from;
    *to++ = span.to;
  }
  return result;
}

SpansOfBlocks::SpansOfBlocks(const Tensor& spans, int64_t tokens)
    : begins_((tokens + kSpanBlock - 1) / kSpanBlock + 1) {
  const int64_t* const ends = spans.data_ptr<int64_t>();
  const auto each_block = [&](const auto& work) {
    for (int64_t span = 0; span < spans.size(0); ++span) {
      const int64_t from = ends[2 * span], to = ends[2 * span + 1];
      if (from == to) continue;
      for (int64_t block = from / kSpanBlock; block <= (to - 1) / kSpanBlock; ++block)
        work(span, block);
    }
  };
  each_block([&](int64_t, int64_t block) { ++begins_[block + 1]; });
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  spans_.resize(begins_.back());
  std::vector<int64_t> next = begins_;
  each_block([&](int64_t span, int64_t block) { spans_[next[block]++] = span; });
}

}  // namespace longspan
