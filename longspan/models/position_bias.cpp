#include "longspan/models/position_bias.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "longspan/attention/linear_map.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

// Where H is no power of 2: those of the power below, then every other one of the power
// above.
std::vector<double> alibi_slopes(int64_t heads) {
  const auto below = static_cast<int64_t>(std::exp2(std::floor(std::log2(heads))));
  const auto slope = [](int64_t head, int64_t of) {
    return std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(of));
  };
  std::vector<double> slopes;
  for (int64_t head = 0; head < below; ++head) slopes.push_back(slope(head, below));
  for (int64_t head = 0; head < heads - below; ++head)
    slopes.push_back(slope(2 * head, 2 * below));
  return slopes;
}

// Of distances 0 and more.
int64_t bucket(int64_t distance, int64_t buckets, int64_t reach) {
  const int64_t exact = buckets / 2;
  if (distance < exact) return distance;
  const double first = static_cast<double>(exact);
  const double share = std::log(static_cast<double>(distance) / first) /
                       std::log(static_cast<double>(reach) / first);
  const auto beyond =
      static_cast<int64_t>(share * static_cast<double>(buckets - exact));
  return std::min(exact + beyond, buckets - 1);
}

Tensor t5_buckets(const PositionBiasOptions& options) {
  const int64_t side = options.causal ? options.buckets : options.buckets / 2;
  std::vector<int64_t> of_distances;
  for (int64_t distance = options.causal ? 0 : -options.reach;
       distance <= options.reach; ++distance)
    of_distances.push_back(bucket(std::abs(distance), side, options.reach) +
                           (distance < 0 ? side : 0));
  return torch::tensor(of_distances, torch::kLong);
}

}  // namespace

bool PositionBias::has_kind(std::string_view kind) {
  return kind == "alibi" || kind == "t5" || kind == "grid";
}

PositionBias::PositionBias(const PositionBiasOptions& options) : options_(options) {
  const auto& [kind, heads, layers, longest, causal, buckets, reach, width] = options_;
  TORCH_INTERNAL_ASSERT(has_kind(kind));
  if (kind == "alibi") {
    slopes_ = torch::tensor(alibi_slopes(heads), torch::kDouble);
  } else if (kind == "t5") {
    const int64_t ways = causal ? 1 : 2;
    require(
        buckets >= 2 * ways && buckets % ways == 0, "model.t5_buckets must be ",
        causal ? "2 or more" : "even and 4 or more, half of them for each direction",
        ", got ", buckets);
    require(reach > buckets / ways / 2, "model.t5_reach must be more than ",
            buckets / ways / 2, ", the distances that have buckets of their own, got ",
            reach);
    learned_.push_back(
        register_parameter("buckets", torch::randn({buckets, heads}) * 0.02));
    buckets_ = t5_buckets(options_);
  } else {
    require(width >= 1,
            "model.positions: grid needs model.grid_width, how many tokens ",
            "a row has");
    const int64_t rows = (longest + width - 1) / width;
    for (int64_t layer = 0; layer < layers; ++layer)
      learned_.push_back(register_parameter(
          "layer" + std::to_string(layer),
          torch::randn({heads, causal ? rows : 2 * rows - 1, 2 * width - 1}) * 0.02));
  }
}

Bias PositionBias::of(int64_t layer, const Tensor& x) {
  const auto type = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  if (options_.kind == "alibi") {
    slopes_ = slopes_.to(x.device());
    return {.slopes = slopes_.to(type)};
  }
  if (options_.kind == "t5") {
    buckets_ = buckets_.to(x.device());
    return {
        .table =
            torch::embedding(at_least_float(learned_[0]), buckets_).t().contiguous(),
        .first = options_.causal ? 0 : -options_.reach};
  }
  const Tensor& table = learned_[static_cast<size_t>(layer)];
  return {.table = at_least_float(table),
          .first = options_.causal ? 0 : -(table.size(1) / 2),
          .width = options_.width,
          .first_column = -(options_.width - 1)};
}

}  // namespace longspan
