#include "longspan/attention/rotary.h"

#include <cmath>

#include "longspan/attention/linear_map.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {

using torch::Tensor;

bool can_turn(const Mechanism& row, const Abilities& can) {
  if (!std::holds_alternative<Mechanism::Make<Attention>>(row.make)) return can.rotary;
  return row.projections != Projections::v && row.projections != Projections::none;
}

Tensor rotated(const Tensor& x, const Tensor& positions, double base) {
  require(x.dim() == 4 && x.size(3) % 2 == 0,
          "rotary positions need heads of an even width, got ", shape(x));
  require(base > 1, "the base of rotary positions must be more than 1, got ", base);
  const int64_t half = x.size(3) / 2;
  // Angles of far positions need more digits than float has.
  const auto angle_options = x.options().dtype(torch::kDouble);
  const Tensor frequencies = torch::exp(torch::arange(half, angle_options) *
                                        (-std::log(base) / static_cast<double>(half)));
  Tensor angles = positions.to(angle_options).unsqueeze(-1) * frequencies;
  if (angles.dim() == 3) angles = angles.unsqueeze(1);  // of all heads
  const auto type = at_least_float(x).scalar_type();
  const Tensor cosine = angles.cos().to(type), sine = angles.sin().to(type);
  const auto parts = at_least_float(x).split(half, 3);
  return torch::cat(
             {parts[0] * cosine - parts[1] * sine, parts[1] * cosine + parts[0] * sine},
             3)
      .to(x.scalar_type());
}

}  // namespace longspan
