#include "longspan/kernels/hash.h"

#include <algorithm>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/rows.h"

namespace longspan {

using torch::Tensor;

Tensor sign_hash(const Tensor& x, const Tensor& planes, const Tensor& offsets) {
  require(x.defined() && x.dim() == 4 && x.is_floating_point(),
          "sign hash: x must be [B, H, N, d] of a floating type, got ", shape(x));
  const bool fits =
      planes.defined() && planes.size(-1) == x.size(3) &&
      (planes.dim() == 2 || (planes.dim() == 3 && planes.size(0) == x.size(1)));
  require(fits, "sign hash: planes must be [P, d] or [H, P, d] with H = ", x.size(1),
          " and d = ", x.size(3), ", got ", shape(planes));
  const int64_t count = planes.size(-2);
  require(count >= 1 && count <= kMostPlanes, "sign hash: there must be 1 to ",
          kMostPlanes, " planes, got ", count);
  require(!offsets.defined() ||
              offsets.sizes() == planes.sizes().slice(0, planes.dim() - 1),
          "sign hash: offsets must be [P] or [H, P] as planes ", shape(planes),
          ", got ", shape(offsets));
  const torch::NoGradGuard no_gradient;
  const auto type = inner_dtype(x);
  // [B, H, P, N]: the numbers of one plane lie side by side.
  Tensor distances =
      longspan::matmul(planes.to(type), x.to(type).contiguous().transpose(2, 3));
  if (offsets.defined()) distances.add_(offsets.to(type).unsqueeze(-1));
  Tensor codes =
      torch::zeros({x.size(0), x.size(1), x.size(2)}, x.options().dtype(torch::kLong));
  for (int64_t plane = 0; plane < count; ++plane)
    codes.bitwise_or_(distances.select(2, plane).gt(0).to(torch::kLong) *
                      (int64_t{1} << plane));
  return codes;
}

Tensor cross_polytope_hash(const Tensor& x, const Tensor& rotations,
                           const Tensor& buckets) {
  constexpr const char* kWho = "cross-polytope hash: ";
  require(x.defined() && x.dim() == 4 && x.is_floating_point(), kWho,
          "x must be [B, H, N, d] of a floating type, got ", shape(x));
  const int64_t examples = x.size(0), heads = x.size(1), count = x.size(2);
  require(rotations.defined() && rotations.dim() == 4 &&
              (rotations.size(0) == 1 || rotations.size(0) == heads) &&
              rotations.size(1) == x.size(3) && rotations.size(2) > 0 &&
              rotations.size(3) > 0,
          kWho, "rotations must be [H|1, d, R, C] with H = ", heads,
          " and d = ", x.size(3), ", got ", shape(rotations));
  require(!buckets.defined() || (buckets.dim() == 1 && buckets.size(0) == examples &&
                                 is_integer(buckets)),
          kWho, "buckets must be [B] integer with B = ", examples, ", got ",
          shape(buckets));
  const torch::NoGradGuard no_gradient;
  const int64_t rounds = rotations.size(2), directions = rotations.size(3);
  const auto type = inner_dtype(x);
  const auto whole = x.options().dtype(torch::kLong);
  const Tensor turned = rotations.to(type).flatten(2);  // [H|1, d, R * C]
  Tensor half = torch::full({}, directions, whole), beyond;
  if (buckets.defined()) {
    half = torch::div(buckets.to(whole), 2, "floor").view({examples, 1, 1, 1});
    beyond = torch::arange(directions, whole).ge(half.unsqueeze(4));
  }
  const Tensor hashes = torch::empty({examples, heads, rounds, count}, whole);
  constexpr int64_t kNumbers = 1 << 21;  // of y at once
  const int64_t each = std::max<int64_t>(
      kNumbers / std::max<int64_t>(examples * heads * rounds * directions, 1), 64);
  for (int64_t from = 0; from < count; from += each) {
    const int64_t to = std::min(from + each, count);
    Tensor y = longspan::matmul(x.slice(2, from, to).to(type).contiguous(), turned)
                   .view({examples, heads, to - from, rounds, directions});
    // A direction that is hidden by a 0 is chosen only where all are 0, the first then.
    if (beyond.defined()) y.masked_fill_(beyond, 0);
    const auto [most, at_most] = y.max(4);
    const auto [least, at_least] = y.min(4);
    hashes.slice(3, from, to)
        .copy_(torch::where(least.neg().gt(most), at_least + half, at_most)
                   .transpose(2, 3));
  }
  return hashes;
}

}  // namespace longspan
