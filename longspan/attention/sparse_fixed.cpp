// Blocks of tokens, and the last tokens of every block, which sum it up. Child et al.
// 2019, arXiv:1904.10509, the fixed form; with half of the heads for each as Tay et
// al., arXiv:2009.06732, tell it.
//
// Heads that see the summaries also see the token itself: before the first summary
// there is nothing else.

#include <algorithm>
#include <numeric>

#include "longspan/attention/pattern_attention.h"
#include "longspan/attention/sparse_heads.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    kSparseStride,
    {.name = "summary",
     .standard = "8",
     .help = "tokens at the end of every stride that all see",
     .least = 1},
    {.name = "first_column",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "whether all see the first token of every stride, too"},
    kSparseHeads,
};

constexpr Preset kPresets[] = {
    {"lra", "{stride: 50, summary: 10, heads: merged, first_column: true}"}};

class SparseFixed final : public PatternAttention {
 public:
  SparseFixed(const Settings& settings, const Sizes& sizes)
      : PatternAttention(sizes.longest),
        heads_(settings, sizes),
        summary_(settings.integer("summary")),
        first_column_(settings.flag("first_column")) {
    const int64_t stride = settings.integer("stride");
    require(stride == 0 || summary_ <= stride, "summary must be at most the stride of ",
            stride, ", got ", summary_);
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const SparseHeads heads(settings, sizes);
    const int64_t stride = heads.stride({});
    if (stride == 0) return numbers_kept(tokens, sizes);
    const int64_t of_stride =
        settings.integer("summary") + (settings.flag("first_column") ? 1 : 0);
    const int64_t kept = (heads.near() ? std::min(tokens, stride) : 0) +
                         (heads.far() ? (tokens + stride - 1) / stride * of_stride : 0);
    return numbers_kept(std::min(tokens, kept), sizes);
  }

 private:
  int64_t size_for(std::optional<int64_t> length) const override {
    return heads_.size_for(length);
  }

  bool is_summary(int64_t token, int64_t stride) const {
    const int64_t place = token % stride;
    return place >= stride - summary_ || (first_column_ && place == 0);
  }

  // The tokens before `end` that sum up a stride.
  std::vector<Span> summaries(int64_t stride, int64_t end) const {
    std::vector<Span> all;
    for (int64_t from = 0; from < end; from += stride) {
      if (first_column_) all.push_back({from, from + 1});
      all.push_back({from + std::max<int64_t>(stride - summary_, 0),
                     std::min(from + stride, end)});
    }
    return all;
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const int64_t stride = heads_.stride(extent);
    PatternPart near{block_of_keys(stride)};
    PatternPart far{any_of({columns_of_keys(summaries(stride, extent.tokens)),
                            window_of_keys(/*before=*/0, /*after=*/0)})};
    for (PatternPart* part : {&near, &far})
      if (extent.causal) part->keys = both_of(part->keys, past_keys());
    // Summaries first: all tokens see them, and else only themselves.
    far.order = [=, this, tokens = extent.tokens] {
      std::vector<int64_t> order(static_cast<size_t>(tokens));
      std::iota(order.begin(), order.end(), int64_t{0});
      std::ranges::stable_partition(
          order, [&](int64_t token) { return is_summary(token, stride); });
      return order;
    };
    return heads_.patterns(near, far);
  }

  Tensor visible(const Extent& extent) const override {
    const int64_t stride = heads_.stride(extent);
    const Positions at(extent.tokens);
    const Tensor near =
        torch::div(at.query, stride, "floor").eq(torch::div(at.key, stride, "floor"));
    const Tensor place = at.key.remainder(stride);
    Tensor columns = place.ge(stride - summary_);
    if (first_column_) columns = columns.logical_or(place.eq(0));
    const Tensor far = columns.logical_or(at.query.eq(at.key));
    if (!extent.causal) return heads_.visible(near, far);
    const Tensor past = at.key <= at.query;
    return heads_.visible(near.logical_and(past), far.logical_and(past));
  }

  Pattern kept() const override {
    return [this](int64_t query, std::vector<Span>& keys) {
      const int64_t stride = heads_.stride({.size = causal_size()});
      if (heads_.near()) keys.push_back({query - query % stride, query});
      if (!heads_.far()) return;
      const std::vector<Span> far = summaries(stride, query);
      keys.insert(keys.end(), far.begin(), far.end());
    };
  }

  SparseHeads heads_;
  int64_t summary_;
  bool first_column_;
};

}  // namespace

constinit const Mechanism catalogue::sparse_fixed{
    .name = "sparse_fixed",
    .summary = "blocks of tokens, and the last tokens of every block",
    .paper = "Child et al. 2019, arXiv:1904.10509",
    .classes = "fixed patterns",
    .time = {"N*(stride + N*summary/stride)*d", 1.5},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state = "keys and values of the block of the next token and of the summaries",
    .state_size = SparseFixed::state_size,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{stride: 12, summary: 2, first_column: true}",
    .make = made_as<Attention, SparseFixed>(),
};

}  // namespace longspan
