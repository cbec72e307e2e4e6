#include "longspan/attention/windows.h"

#include <algorithm>

#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

std::vector<int64_t> dilations_of(const Settings& settings) {
  std::vector<int64_t> dilations;
  for (const Value& value : settings.list("dilation")) {
    const auto* number = value.as<int64_t>();
    require(number && *number >= 1,
            "dilation must be a list of whole numbers of 1 or more, got ",
            value.text());
    dilations.push_back(*number);
  }
  require(!dilations.empty(), "dilation must have at least one number, got []");
  return dilations;
}

int64_t reach(const Settings& settings) {
  return settings.integer("window") * std::ranges::max(dilations_of(settings));
}

}  // namespace

Windows::Windows(const Settings& settings, const Sizes& sizes)
    : window_(settings.integer("window")), dilations_(dilations_of(settings)) {
  const auto count = static_cast<int64_t>(dilations_.size());
  require(count == 1 || count == sizes.heads,
          "dilation must be one number or one for each of the ", sizes.heads,
          " heads, got ", count);
}

int64_t Windows::state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
  return numbers_kept(std::min(tokens, reach(settings)), sizes);
}

HeadPatterns Windows::patterns(const Extent& extent) const {
  HeadPatterns patterns{.distinct = {}, .of_head = {}};
  std::vector<int64_t> known;
  for (const int64_t dilation : dilations_) {
    const auto found = std::ranges::find(known, dilation);
    patterns.of_head.push_back(static_cast<int32_t>(found - known.begin()));
    if (found != known.end()) continue;
    known.push_back(dilation);
    const int64_t reachable = std::min(window_, extent.tokens);
    PatternPart part{
        window_of_keys(reachable, extent.causal ? 0 : reachable, dilation)};
    if (dilation > 1)
      part.order = [=, tokens = extent.tokens] { return by_residue(dilation, tokens); };
    patterns.distinct.push_back({part});
  }
  return patterns;
}

Tensor Windows::visible(const Extent& extent) const {
  const Positions at(extent.tokens);
  const Tensor distance = at.query - at.key;
  std::vector<Tensor> heads;
  for (const int64_t dilation : dilations_) {
    const Tensor near = distance.remainder(dilation).eq(0).logical_and(
        distance.abs().le(window_ * dilation));
    heads.push_back(extent.causal ? near.logical_and(distance >= 0) : near);
  }
  return torch::stack(heads);
}

Sight Windows::sight(int64_t tokens, bool causal) {
  Sight sight = PatternAttention::sight(tokens, causal);
  if (!mechanism().can.global) return sight;
  sight.pairs.select(2, 0).fill_(static_cast<int64_t>(Sees::directly));
  if (!causal) sight.pairs.select(1, 0).fill_(static_cast<int64_t>(Sees::directly));
  return sight;
}

Pattern Windows::kept() const {
  return window_of_keys(window_ * std::ranges::max(dilations_), 0);
}

}  // namespace longspan
