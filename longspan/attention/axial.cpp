// The sequence as a grid of any number of axes, and attention along one of them: an
// axis a layer, the last one first. Ho et al. 2019, arXiv:1912.12180.
//
// Tokens fill the grid row by row. The first axis is as long as it takes; the grid may
// end within a row.

#include <algorithm>
#include <cmath>

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kMost = int64_t{1} << 31;  // tokens

constexpr Setting kSettings[] = {
    {.name = "shape",
     .kind = Kind::list,
     .standard = "[0, 0]",
     .help =
         "lengths of the axes, of which the first may be exceeded; axes of length 0 "
         "share what the others leave evenly of an example, in causal models of the "
         "longest"},
    {.name = "axis",
     .standard = "-1",
     .help = "the axis to attend along, from 0; -1: the last in layer 0, then the one "
             "before, and again",
     .least = -1},
};

std::vector<int64_t> shape_of(const Settings& settings) {
  std::vector<int64_t> shape;
  for (const Value& value : settings.list("shape")) {
    const auto* length = value.as<int64_t>();
    require(length && *length >= 0,
            "shape must be a list of whole numbers of 0 or more, got ", value.text());
    shape.push_back(std::min(*length, kMost));
  }
  require(!shape.empty(), "shape must have at least one axis, got []");
  return shape;
}

size_t axis_of(const Settings& settings, const Sizes& sizes, size_t count) {
  const auto axes = static_cast<int64_t>(count);
  const int64_t axis = settings.integer("axis");
  require(axis < axes, "axis must be less than the ", axes, " axes of shape, got ",
          axis);
  return static_cast<size_t>(axis >= 0 ? axis : axes - 1 - sizes.layer % axes);
}

bool is_automatic(const std::vector<int64_t>& shape) {
  return std::find(shape.begin() + 1, shape.end(), 0) != shape.end();
}

// Tokens of a line are `stride` apart; every `period` tokens other lines begin.
struct Lines {
  int64_t stride = 1;
  int64_t period = kMost;
};

class Axial final : public PatternAttention {
 public:
  Axial(const Settings& settings, const Sizes& sizes)
      : PatternAttention(sizes.longest),
        shape_(shape_of(settings)),
        axis_(axis_of(settings, sizes, shape_.size())) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const Axial axial(settings, sizes);
    const bool is_known = sizes.longest > 0 || !is_automatic(axial.shape_);
    const int64_t period =
        is_known ? axial.lines_for(axial.causal_size()).period : kMost;
    return numbers_kept(std::min(tokens, period), sizes);
  }

 private:
  // The axes of length 0 are `edge` long.
  Lines lines_for(int64_t edge) const {
    const auto times = [&](int64_t tokens, int64_t length) {
      return std::min(tokens * (length > 0 ? length : edge), kMost);
    };
    Lines lines;
    for (size_t at = shape_.size() - 1; at > axis_; --at)
      lines.stride = times(lines.stride, shape_[at]);
    if (axis_ > 0) lines.period = times(lines.stride, shape_[axis_]);
    return lines;
  }

  int64_t size_for(std::optional<int64_t> length) const override {
    if (!is_automatic(shape_)) return 0;
    require(length.has_value(), "shape must give the length of every axis but the ",
            "first for decoding, where the length is not known");
    double share = static_cast<double>(*length), zeros = 0;
    for (const int64_t given : shape_) {
      share /= static_cast<double>(std::max<int64_t>(given, 1));
      zeros += given == 0;
    }
    return std::max<int64_t>(std::llround(std::pow(share, 1 / zeros)), 1);
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const Lines lines = lines_for(extent.size);
    const auto keys = [=](int64_t query, std::vector<Span>& seen) {
      const auto [stride, period] = lines;
      const int64_t first = query / period * period;
      const int64_t end =
          extent.causal ? query + 1 : std::min(first + period, extent.tokens);
      if (stride == 1) return seen.push_back({first, end});
      for (int64_t key = first + (query - first) % stride; key < end; key += stride)
        seen.push_back({key, key + 1});
    };
    PatternPart part{.keys = keys};
    if (lines.stride > 1)
      part.order = [=, tokens = extent.tokens] {
        std::vector<int64_t> order;
        for (int64_t first = 0; first < tokens; first += lines.period)
          for (const int64_t at :
               by_residue(lines.stride, std::min(lines.period, tokens - first)))
            order.push_back(first + at);
        return order;
      };
    return {.distinct = {{std::move(part)}}};
  }

  Tensor visible(const Extent& extent) const override {
    const auto [stride, period] = lines_for(extent.size);
    const Positions at(extent.tokens);
    const Tensor line =
        (at.query - at.key)
            .remainder(stride)
            .eq(0)
            .logical_and(at.query.div(period, "floor") == at.key.div(period, "floor"));
    return (extent.causal ? line.logical_and(at.key <= at.query) : line).unsqueeze(0);
  }

  Pattern kept() const override {
    return [period = lines_for(causal_size()).period](int64_t query,
                                                      std::vector<Span>& keys) {
      keys.push_back({query / period * period, query});
    };
  }

  std::vector<int64_t> shape_;
  size_t axis_;
};

}  // namespace

constinit const Mechanism catalogue::axial{
    .name = "axial",
    .summary = "one axis of a grid a layer",
    .paper = "Ho et al. 2019, arXiv:1912.12180",
    .classes = "fixed patterns",
    .time = {"N*sqrt(N)*d", 1.5},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state =
        "keys and values of the part of the grid that later tokens see: the line so "
        "far along the last axis, all tokens along the first",
    .state_size = Axial::state_size,
    .settings = kSettings,
    .test_settings = "{shape: [0, 4, 5], axis: 1}",
    .make = made_as<Attention, Axial>(),
};

}  // namespace longspan
