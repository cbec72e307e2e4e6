// Windows around tokens, dilated by head: sliding, and with global tokens longformer.

#pragma once

#include <vector>

#include "longspan/attention/pattern_attention.h"

namespace longspan {

inline constexpr Setting kWindowSettings[] = {
    {.name = "window",
     .standard = "256",
     .help = "tokens seen on each side, and the token itself",
     .least = 0},
    {.name = "dilation",
     .kind = Kind::list,
     .standard = "[1]",
     .help = "steps between the tokens seen: one for all heads or one for each"},
};

class Windows final : public PatternAttention {
 public:
  Windows(const Settings& settings, const Sizes& sizes);

  Sight sight(int64_t tokens, bool causal) override;

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens);

 private:
  HeadPatterns patterns(const Extent& extent) const override;
  torch::Tensor visible(const Extent& extent) const override;
  Pattern kept() const override;

  int64_t window_;
  std::vector<int64_t> dilations_;  // of every head, or one for all
};

}  // namespace longspan
