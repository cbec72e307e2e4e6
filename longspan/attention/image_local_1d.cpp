// Blocks of queries that share a memory of tokens around them. Parmar et al. 2018,
// arXiv:1802.05751, 1D local attention: the tokens of a block see the block and the
// `memory` tokens before it, in the bidirectional form also those after it.

#include <algorithm>

#include "longspan/attention/pattern_attention.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "block",
     .standard = "256",
     .help = "queries that see the same keys",
     .least = 1},
    {.name = "memory",
     .standard = "256",
     .help = "tokens seen before, and if not causal after, the block",
     .least = 0},
};

class ImageLocal1d final : public PatternAttention {
 public:
  ImageLocal1d(const Settings& settings, const Sizes&)
      : block_(settings.integer("block")), memory_(settings.integer("memory")) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t most = settings.integer("memory") + settings.integer("block") - 1;
    return numbers_kept(std::min(tokens, most), sizes);
  }

 private:
  HeadPatterns patterns(const Extent& extent) const override {
    const auto keys = [=, block = block_, memory = memory_](int64_t query,
                                                            std::vector<Span>& seen) {
      const int64_t first = query / block * block;
      seen.push_back({first - memory,
                      extent.causal ? query + 1
                                    : std::min(first + block, extent.tokens) + memory});
    };
    return {.distinct = {{{.keys = keys}}}};
  }

  Tensor visible(const Extent& extent) const override {
    const Positions at(extent.tokens);
    const Tensor first = at.query.div(block_, "floor").mul(block_);
    const Tensor to = extent.causal ? at.query + 1 : first + block_ + memory_;
    return (at.key >= first - memory_).logical_and(at.key < to).unsqueeze(0);
  }

  Pattern kept() const override {
    return [block = block_, memory = memory_](int64_t query, std::vector<Span>& keys) {
      keys.push_back({query / block * block - memory, query});
    };
  }

  int64_t block_, memory_;
};

}  // namespace

constinit const Mechanism catalogue::image_local_1d{
    .name = "image_local_1d",
    .summary = "blocks that share a memory of tokens around them",
    .paper = "Parmar et al. 2018, arXiv:1802.05751",
    .classes = "fixed patterns",
    .time = {"N*(block + memory)*d", 1},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state = "keys and values of the block so far and of the memory before it",
    .state_size = ImageLocal1d::state_size,
    .settings = kSettings,
    .test_settings = "{block: 12, memory: 7}",
    .make = made_as<Attention, ImageLocal1d>(),
};

}  // namespace longspan
