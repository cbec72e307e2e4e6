// Blocks of tokens, each alone or with whole blocks beside it. Liu et al. 2018,
// arXiv:1801.10198.

#include <algorithm>

#include "longspan/attention/pattern_attention.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "block", .standard = "256", .help = "tokens of a block", .least = 1},
    {.name = "before",
     .standard = "0",
     .help = "whole blocks seen before the token's own",
     .least = 0},
    {.name = "after",
     .standard = "0",
     .help = "whole blocks seen after the token's own",
     .least = 0},
};

constexpr Preset kPresets[] = {{"lra", "{block: 50}"}};

class Local final : public PatternAttention {
 public:
  Local(const Settings& settings, const Sizes&)
      : block_(settings.integer("block")),
        before_(settings.integer("before")),
        after_(settings.integer("after")) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t block = settings.integer("block");
    const int64_t before = std::min(settings.integer("before"), tokens / block);
    return numbers_kept(std::min(tokens, (before + 1) * block), sizes);
  }

 private:
  HeadPatterns patterns(const Extent& extent) const override {
    const Pattern blocks = block_of_keys(block_, before_, after_);
    const PatternPart part{extent.causal ? both_of(blocks, past_keys()) : blocks};
    return {.distinct = {{part}}};
  }

  Tensor visible(const Extent& extent) const override {
    const Positions at(extent.tokens);
    const Tensor ahead =
        torch::div(at.key, block_, "floor") - torch::div(at.query, block_, "floor");
    const Tensor near = ahead.ge(-before_).logical_and(ahead.le(after_));
    return (extent.causal ? near.logical_and(at.key <= at.query) : near).unsqueeze(0);
  }

  Pattern kept() const override { return block_of_keys(block_, before_); }

  int64_t block_, before_, after_;
};

}  // namespace

constinit const Mechanism catalogue::local{
    .name = "local",
    .summary = "blocks of tokens that do not overlap, alone or with those beside them",
    .paper = "Liu et al. 2018, arXiv:1801.10198",
    .classes = "fixed patterns",
    .time = {"N*block*(1 + before + after)*d", 1},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state =
        "keys and values of the block of the next token and of those seen before it",
    .state_size = Local::state_size,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{block: 9, before: 1, after: 2}",
    .make = made_as<Attention, Local>(),
};

}  // namespace longspan
