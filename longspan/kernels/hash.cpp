#include "longspan/kernels/hash.h"

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

}  // namespace longspan
