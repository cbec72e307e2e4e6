// A few large blocks; a head sees one of them from each, its own or one further on.
// Qiu et al. 2019, arXiv:1911.02972.
//
// Of the blocks that an example has, the one after the last is the first. In causal
// passes heads look back as far as they else look on, and where there is no such block
// they see nothing and give 0.

#include <algorithm>

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "blocks",
     .standard = "2",
     .help = "into how many blocks an example is cut",
     .least = 1},
    {.name = "block_size",
     .standard = "0",
     .help = "tokens of a block, 0: from the length of an example, in causal models "
             "from the longest",
     .least = 0},
    {.name = "shifts",
     .kind = Kind::list,
     .standard = "[0, 0, 0, 0, 0, 1]",
     .help = "how many blocks further on each head looks; over and over if too few"},
};

std::vector<int64_t> shifts_of(const Settings& settings, int64_t heads) {
  std::vector<int64_t> given;
  for (const Value& value : settings.list("shifts")) {
    const auto* shift = value.as<int64_t>();
    require(shift && *shift >= 0,
            "shifts must be a list of whole numbers of 0 or more, got ", value.text());
    given.push_back(*shift);
  }
  require(!given.empty(), "shifts must have at least one number, got none");
  std::vector<int64_t> shifts;
  for (int64_t head = 0; head < heads; ++head)
    shifts.push_back(given[static_cast<size_t>(head) % given.size()]);
  return shifts;
}

// Blocks of `size` that hold `tokens` tokens.
int64_t blocks_of(int64_t tokens, int64_t size) {
  return tokens == 0 ? 0 : (tokens - 1) / size + 1;
}

class Blockwise final : public PatternAttention {
 public:
  Blockwise(const Settings& settings, const Sizes& sizes)
      : PatternAttention(sizes.longest),
        blocks_(settings.integer("blocks")),
        fixed_size_(settings.integer("block_size")),
        shifts_(shifts_of(settings, sizes.heads)) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t size = settings.integer("block_size");
    if (size == 0) return numbers_kept(tokens, sizes);
    const int64_t back =
        std::min(std::ranges::max(shifts_of(settings, sizes.heads)), tokens / size);
    return numbers_kept(std::min(tokens, (back + 1) * size), sizes);
  }

 private:
  // The tokens of all blocks of an example, the last one filled up: it tells the size
  // of a block and how many there are.
  int64_t size_for(std::optional<int64_t> length) const override {
    require(length || fixed_size_ > 0,
            "block_size must be given for decoding, where the length is not known");
    if (!length) return 0;
    const int64_t tokens = std::max<int64_t>(*length, 1), size = block_size(tokens);
    return blocks_of(tokens, size) * size;
  }

  int64_t block_size(int64_t tokens) const {
    return fixed_size_ > 0 ? fixed_size_ : blocks_of(tokens, blocks_);
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const int64_t size = block_size(extent.size);
    const int64_t count = blocks_of(extent.causal ? extent.tokens : extent.size, size);
    HeadPatterns patterns{.distinct = {}, .of_head = {}};
    std::vector<int64_t> known;
    for (const int64_t shift : shifts_) {
      const auto found = std::ranges::find(known, shift);
      patterns.of_head.push_back(static_cast<int32_t>(found - known.begin()));
      if (found != known.end()) continue;
      known.push_back(shift);
      std::vector<std::vector<int64_t>> seen(static_cast<size_t>(count));
      for (int64_t block = 0; block < count; ++block) {
        const int64_t other = extent.causal ? block - shift : (block + shift) % count;
        if (other >= 0) seen[static_cast<size_t>(block)] = {other};
      }
      const Pattern blocks = listed_blocks(size, std::move(seen));
      patterns.distinct.push_back(
          {PatternPart{extent.causal ? both_of(blocks, past_keys()) : blocks}});
    }
    return patterns;
  }

  Tensor visible(const Extent& extent) const override {
    const Positions at(extent.tokens);
    const int64_t size = block_size(extent.size);
    const Tensor of_query = torch::div(at.query, size, "floor"),
                 of_key = torch::div(at.key, size, "floor");
    std::vector<Tensor> heads;
    for (const int64_t shift : shifts_)
      heads.push_back(
          extent.causal ? of_key.eq(of_query - shift).logical_and(at.key <= at.query)
                        : of_key.eq((of_query + shift).remainder(extent.size / size)));
    return torch::stack(heads);
  }

  Pattern kept() const override {
    return block_of_keys(block_size(causal_size()), std::ranges::max(shifts_));
  }

  int64_t blocks_, fixed_size_;
  std::vector<int64_t> shifts_;  // of every head
};

}  // namespace

constinit const Mechanism catalogue::blockwise{
    .name = "blockwise",
    .summary = "a few large blocks, each head sees one of them, its own or another",
    .paper = "Qiu et al. 2019, arXiv:1911.02972",
    .classes = "fixed patterns",
    .time = {"N*N/blocks*d", 2},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state =
        "keys and values of the block of the next token and of the largest shift of "
        "blocks before it",
    .state_size = Blockwise::state_size,
    .settings = kSettings,
    .test_settings = "{block_size: 20, shifts: [0, 1, 2]}",
    .make = made_as<Attention, Blockwise>(),
};

}  // namespace longspan
