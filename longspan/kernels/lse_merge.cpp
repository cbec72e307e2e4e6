#include "longspan/kernels/lse_merge.h"

#include <limits>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check(const std::vector<Attended>& parts) {
  require(!parts.empty(), "merge: there must be at least one part, got none");
  const Tensor& first = parts.front().out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [out, lse] = parts[i];
    require(out.defined() && out.dim() == 4, "merge: out of part ", i,
            " must be [B, H, N, dv], got ", shape(out));
    require(out.is_floating_point(), "merge: out of part ", i,
            " must be floating, got ", out.scalar_type());
    require(out.sizes() == first.sizes(),
            "merge: out of every part must have one shape, got ", shape(first), " and ",
            shape(out));
    require(out.scalar_type() == first.scalar_type(),
            "merge: out of every part must have one dtype, got ", first.scalar_type(),
            " and ", out.scalar_type());
    const auto rows = out.sizes().slice(0, 3);
    require(lse.defined() && lse.sizes() == rows, "merge: lse of part ", i, " must be ",
            rows, ", got ", shape(lse));
    require(lse.is_floating_point(), "merge: lse of part ", i,
            " must be floating, got ", lse.scalar_type());
    require(out.device() == first.device() && lse.device() == first.device(),
            "merge: out and lse of every part must be on one device, got ",
            first.device(), ", and ", out.device(), " and ", lse.device(), " of part ",
            i);
  }
}

}  // namespace

Attended merge(const std::vector<Attended>& parts) {
  check(parts);
  return merge_reference(parts);
}

Attended merge_reference(const std::vector<Attended>& parts) {
  const auto dtype = parts.front().out.scalar_type();
  const auto precise = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;

  std::vector<Tensor> all;
  for (const auto& part : parts) all.push_back(part.lse.to(precise));
  const Tensor lse = torch::stack(all);  // [parts, B, H, N]
  Tensor max = lse.detach().amax(0);
  max = max.masked_fill(max == -kInfinity, 0);

  const Tensor weights = (lse - max).exp();
  const Tensor total = weights.sum(0);
  const Tensor nothing = total == 0;  // else at least 1
  const Tensor divisor = total.masked_fill(nothing, 1);

  Tensor sum;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor weight = weights[i].unsqueeze(-1);
    // Without weight no value counts, not even one that is not finite.
    const Tensor out = parts[i].out.to(precise).masked_fill(weight == 0, 0);
    sum = sum.defined() ? sum + weight * out : weight * out;
  }
  return {.out = (sum / divisor.unsqueeze(-1)).to(dtype),
          .lse = (max + divisor.log()).masked_fill(nothing, -kInfinity)};
}

}  // namespace longspan
