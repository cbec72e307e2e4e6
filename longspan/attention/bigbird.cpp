// Blocks of tokens that see the blocks beside them, a few drawn at random, and global
// ones. Zaheer et al. 2020, arXiv:2007.14062.
//
// `internal`: the first block and the last that an example has see and are seen by all.
// `extended`: only the tokens of pass.mask.global do; the model puts them in front. The
// random blocks are a function of the setting `seed`, the layer, the head and how many
// blocks an example has: the same in training and after it.

#include <algorithm>

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"
#include "longspan/base/random.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "block", .standard = "64", .help = "tokens of a block", .least = 1},
    {.name = "window",
     .standard = "3",
     .help = "blocks seen around a block and with it, an odd number",
     .least = 1},
    {.name = "random",
     .standard = "3",
     .help = "blocks seen at random by each block and head",
     .least = 0},
    {.name = "construction",
     .kind = Kind::word,
     .standard = "internal",
     .help = "what is global: the first and the last block, or given tokens alone",
     .choices = "internal|extended"},
    {.name = "seed",
     .standard = "0",
     .help = "of the random blocks, which also depend on layer and head"},
    {.name = "dense_below",
     .standard = "0",
     .help = "examples of fewer tokens than this see every pair",
     .least = 0},
};

constexpr Preset kPresets[] = {{"lra", "{block: 64, random: 3}"}};

constexpr int64_t kEveryPair = -1;  // in place of a number of blocks

class BigBird final : public PatternAttention {
 public:
  BigBird(const Settings& settings, const Sizes& sizes)
      : block_(settings.integer("block")),
        reach_(settings.integer("window") / 2),
        random_(settings.integer("random")),
        dense_below_(settings.integer("dense_below")),
        heads_(sizes.heads),
        internal_(settings.word("construction") == "internal"),
        key_(mix(Key{static_cast<uint64_t>(settings.integer("seed"))},
                 static_cast<uint64_t>(sizes.layer))) {
    require(settings.integer("window") % 2 == 1,
            "window must be an odd number of blocks, got ", settings.integer("window"));
  }

 private:
  int64_t blocks_of(int64_t tokens) const { return (tokens - 1) / block_ + 1; }

  int64_t size_for(std::optional<int64_t> length) const override {
    const int64_t tokens = std::max<int64_t>(length.value_or(1), 1);
    return tokens < dense_below_ ? kEveryPair : blocks_of(tokens);
  }

  // The random blocks of block `row` among `count`: of those neither near nor global
  // `random`, or all if they are fewer. (Floyd's way to draw without replacement.)
  std::vector<int64_t> drawn(int64_t head, int64_t count, int64_t row) const {
    const int64_t first = internal_ ? 1 : 0, end = count - first;
    const int64_t before = std::max<int64_t>(row - reach_ - first, 0);
    const int64_t after = std::max<int64_t>(end - row - reach_ - 1, 0);
    const int64_t others = before + after;
    const Key key =
        mix(mix(mix(key_, static_cast<uint64_t>(head)), static_cast<uint64_t>(count)),
            static_cast<uint64_t>(row));
    std::vector<int64_t> chosen;
    for (int64_t last = others - std::min(random_, others); last < others; ++last) {
      const uint64_t word = philox(key, {static_cast<uint32_t>(last), 0, 0, 0})[0];
      const auto at =
          static_cast<int64_t>(word * static_cast<uint64_t>(last + 1) >> 32);
      chosen.push_back(std::ranges::count(chosen, at) == 0 ? at : last);
    }
    for (int64_t& at : chosen)
      at = at < before ? first + at : row + reach_ + 1 + at - before;
    return chosen;
  }

  Pattern keys_of(int64_t head, int64_t count) const {
    std::vector<std::vector<int64_t>> seen;
    for (int64_t row = 0; row < count; ++row) {
      auto& mine = seen.emplace_back(drawn(head, count, row));
      for (int64_t near = std::max<int64_t>(row - reach_, 0);
           near < std::min(row + reach_ + 1, count); ++near)
        mine.push_back(near);
      if (internal_) mine.insert(mine.end(), {0, count - 1});
    }
    const Pattern blocks = listed_blocks(block_, std::move(seen));
    if (!internal_) return blocks;
    return rows_of_queries({{0, block_}, {(count - 1) * block_, count * block_}},
                           all_keys(), blocks);
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const bool every = extent.size == kEveryPair;
    const int64_t distinct = every || random_ == 0 ? 1 : heads_;
    HeadPatterns patterns{.distinct = {}, .of_head = {}};
    for (int64_t head = 0; head < heads_; ++head) {
      patterns.of_head.push_back(static_cast<int32_t>(head % distinct));
      if (head < distinct)
        patterns.distinct.push_back(
            {PatternPart{every ? all_keys() : keys_of(head, extent.size)}});
    }
    return patterns;
  }

  Tensor visible(const Extent& extent) const override {
    const int64_t tokens = extent.tokens, count = extent.size;
    if (count == kEveryPair) return torch::ones({heads_, tokens, tokens}, torch::kBool);
    const Positions at(tokens);
    const Tensor of_query = torch::div(at.query, block_, "floor"),
                 of_key = torch::div(at.key, block_, "floor");
    Tensor seen = (of_query - of_key).abs().le(reach_);
    if (internal_)
      for (const Tensor& block : {of_query, of_key})
        seen = seen.logical_or(block.eq(0)).logical_or(block.eq(count - 1));

    const int64_t all = std::max(blocks_of(std::max<int64_t>(tokens, 1)), count);
    Tensor random = torch::zeros({heads_, all, all}, torch::kBool);
    auto is_drawn = random.accessor<bool, 3>();
    for (int64_t head = 0; head < heads_; ++head)
      for (int64_t row = 0; row < count; ++row)
        for (const int64_t block : drawn(head, count, row))
          is_drawn[head][row][block] = true;
    return seen.logical_or(
        random.index_select(1, of_query.view(-1)).index_select(2, of_key.view(-1)));
  }

  int64_t block_;
  int64_t reach_;  // blocks on each side
  int64_t random_, dense_below_, heads_;
  bool internal_;
  Key key_;
};

}  // namespace

constinit const Mechanism catalogue::bigbird{
    .name = "bigbird",
    .summary = "blocks that see those beside them, random ones, and global ones",
    .paper = "Zaheer et al. 2020, arXiv:2007.14062",
    .classes = "fixed patterns, memory",
    .time = {"N*block*(window + random + 2)*d", 1},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::never,
            .padding = true,
            .bias = true,
            .segments = true,
            .global = true,
            .dropout = true,
            .grouped = true},
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{block: 8, random: 2}",
    .make = made_as<Attention, BigBird>(),
};

}  // namespace longspan
