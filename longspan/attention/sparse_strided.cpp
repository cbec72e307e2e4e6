// A window, and every stride-th token. Child et al. 2019, arXiv:1904.10509, the strided
// form; with half of the heads for each as Tay et al., arXiv:2009.06732, tell it.

#include <algorithm>

#include "longspan/attention/pattern_attention.h"
#include "longspan/attention/sparse_heads.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {kSparseStride, kSparseHeads};

class SparseStrided final : public PatternAttention {
 public:
  SparseStrided(const Settings& settings, const Sizes& sizes)
      : PatternAttention(sizes.longest), heads_(settings, sizes) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const SparseHeads heads(settings, sizes);
    const bool all = heads.far() || heads.stride({}) == 0;
    return numbers_kept(all ? tokens : std::min(tokens, heads.stride({})), sizes);
  }

 private:
  int64_t size_for(std::optional<int64_t> length) const override {
    return heads_.size_for(length);
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const int64_t stride = heads_.stride(extent);
    const PatternPart near{window_of_keys(stride - 1, extent.causal ? 0 : stride - 1)};
    PatternPart far{stride_of_keys(stride, extent.tokens),
                    [=, tokens = extent.tokens] { return by_residue(stride, tokens); }};
    if (extent.causal) far.keys = both_of(far.keys, past_keys());
    return heads_.patterns(near, far);
  }

  Tensor visible(const Extent& extent) const override {
    const int64_t stride = heads_.stride(extent);
    const Positions at(extent.tokens);
    const Tensor distance = at.query - at.key;
    const Tensor allowed =
        extent.causal ? distance.ge(0) : torch::ones_like(distance, torch::kBool);
    return heads_.visible(allowed.logical_and(distance.abs() < stride),
                          allowed.logical_and(distance.remainder(stride).eq(0)));
  }

  Pattern kept() const override {
    return heads_.far() ? all_keys()
                        : window_of_keys(heads_.stride({.size = causal_size()}) - 1, 0);
  }

  SparseHeads heads_;
};

}  // namespace

constinit const Mechanism catalogue::sparse_strided{
    .name = "sparse_strided",
    .summary = "a window around every token, and every stride-th token",
    .paper = "Child et al. 2019, arXiv:1904.10509",
    .classes = "fixed patterns",
    .time = {"N*(stride + N/stride)*d", 1.5},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state =
        "keys and values of all tokens, in layers that only see near of the last "
        "stride",
    .state_size = SparseStrided::state_size,
    .settings = kSettings,
    .test_settings = "{stride: 9, heads: merged}",
    .make = made_as<Attention, SparseStrided>(),
};

}  // namespace longspan
