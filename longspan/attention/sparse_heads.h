// What the two forms of Child et al. 2019, arXiv:1904.10509, share: a stride, and two
// patterns dealt out to heads or layers.

#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"

namespace longspan {

inline constexpr Setting kSparseStride = {
    .name = "stride",
    .standard = "128",
    .help =
        "tokens from one token seen afar to the next, 0: the root of an example's "
        "length, in causal models of the longest",
    .least = 0};

inline constexpr Setting kSparseHeads = {
    .name = "heads",
    .kind = Kind::word,
    .standard = "split",
    .help =
        "half of the heads see near and half afar, all see both merged, or layers "
        "take turns",
    .choices = "split|merged|interleave"};

// Settings `stride` and `heads`.
class SparseHeads {
 public:
  SparseHeads(const Settings& settings, const Sizes& sizes)
      : stride_(settings.integer("stride")),
        heads_(sizes.heads),
        merged_(settings.word("heads") == "merged") {
    const bool in_turn = settings.word("heads") == "interleave";
    near_ = !in_turn || sizes.layer % 2 == 0;
    far_ = !in_turn || sizes.layer % 2 == 1;
    require(in_turn || merged_ || heads_ >= 2,
            "heads: split needs 2 heads or more, got ", heads_,
            "; choose merged or interleave");
  }

  // Whether heads of this layer see near, and whether afar.
  bool near() const { return near_; }
  bool far() const { return far_; }

  int64_t size_for(std::optional<int64_t> length) const {
    if (stride_ > 0) return 0;
    require(length.has_value(),
            "stride must be given for decoding, where the length is not known");
    return square_root(*length);
  }
  int64_t stride(const Extent& extent) const {
    return stride_ > 0 ? stride_ : extent.size;
  }

  HeadPatterns patterns(const PatternPart& near, const PatternPart& far) const {
    if (merged_) {
      const PatternPart others{but_not(far.keys, near.keys), far.order};
      return {.distinct = {{near, others}}};
    }
    if (!near_ || !far_) return {.distinct = {{near_ ? near : far}}};
    HeadPatterns patterns{.distinct = {{near}, {far}}, .of_head = {}};
    for (int64_t head = 0; head < heads_; ++head)
      patterns.of_head.push_back(sees_near(head) ? 0 : 1);
    return patterns;
  }

  // The same from what is visible near and afar, [N, N] each.
  torch::Tensor visible(const torch::Tensor& near, const torch::Tensor& far) const {
    if (merged_) return near.logical_or(far).unsqueeze(0);
    if (!near_ || !far_) return (near_ ? near : far).unsqueeze(0);
    std::vector<torch::Tensor> all;
    for (int64_t head = 0; head < heads_; ++head)
      all.push_back(sees_near(head) ? near : far);
    return torch::stack(all);
  }

 private:
  bool sees_near(int64_t head) const { return head < (heads_ + 1) / 2; }

  int64_t stride_;  // 0: from the length
  int64_t heads_;
  bool merged_, near_, far_;
};

}  // namespace longspan
