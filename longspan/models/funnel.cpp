// Blocks of layers at shorter and shorter length: between two blocks every `pool`
// tokens become their mean, and their number comes back for a few last layers. Dai et
// al. 2020, arXiv:2006.03236; causal as the Hourglass Transformer, Nawrot et al. 2021,
// arXiv:2110.13711.
//
// A group pools its real members, and is padding where it has none; the last may be
// smaller, so nothing is cut off. The first layer of a block asks from the pooled
// tokens and sees those they were pooled from. Scores have no term of segments, as a
// pass tells none of the two halves of an input.
//
// A causal group is what ends at a multiple of `pool`: group g pools the tokens from
// g*pool - (pool - 1) to g*pool, zeros before the first, and is repeated for the tokens
// from g*pool on, level by level, added to what they were. The first token is one like
// the others there.

#include <utility>

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"
#include "longspan/models/block.h"
#include "longspan/models/funnel_attention.h"
#include "longspan/models/token_groups.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "blocks",
     .kind = Kind::list,
     .standard = "[4, 4, 4]",
     .help = "layers of each block; tokens are pooled between two blocks"},
    {.name = "repeats",
     .kind = Kind::list,
     .standard = "[]",
     .help = "how often each layer of a block is run, with the same weights, a number "
             "for each block; []: once"},
    {.name = "pool", .standard = "2", .help = "tokens that become one", .least = 1},
    {.name = "pool_q_only",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "the first layer of a block sees the tokens that were pooled, not only "
             "their means"},
    {.name = "separate_first",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "the first token is the classifier's: never pooled, and without a place; "
             "false where there is none, as with model.pooling: mean; causal passes "
             "have no such token"},
    {.name = "decoder",
     .standard = "2",
     .help = "layers at full length after the blocks; 0: what is left of the tokens "
             "after the last pooling comes out",
     .least = 0},
    {.name = "norm",
     .kind = Kind::word,
     .standard = "post",
     .help = "where layer norms stand in a layer",
     .choices = "post|pre|sandwich"},
};

constexpr Preset kPresets[] = {
    {"b6_3x2_3x2", "{blocks: [6, 3, 3], repeats: [1, 2, 2]}"},
    {"b6_6_6", "{blocks: [6, 6, 6]}"},
    {"b8_8_8", "{blocks: [8, 8, 8]}"},
    {"b10_10_10", "{blocks: [10, 10, 10]}"},
};

// What a block is made of.
struct Depth {
  int64_t layers = 1, repeats = 1;
};

std::vector<int64_t> numbers(const Settings& settings, std::string_view name) {
  std::vector<int64_t> all;
  for (const Value& value : settings.list(name)) {
    const auto* number = value.as<int64_t>();
    require(number && *number >= 1, name,
            " must be a list of whole numbers of 1 or more, got ", value.text());
    all.push_back(*number);
  }
  return all;
}

std::vector<Depth> depths_of(const Settings& settings) {
  const auto layers = numbers(settings, "blocks"),
             repeats = numbers(settings, "repeats");
  require(!layers.empty(), "blocks must have at least one number, got []");
  require(repeats.empty() || repeats.size() == layers.size(),
          "repeats must be [] or one number for each of the ", layers.size(),
          " blocks, got ", repeats.size());
  std::vector<Depth> depths;
  for (size_t i = 0; i < layers.size(); ++i)
    depths.push_back({layers[i], repeats.empty() ? 1 : repeats[i]});
  return depths;
}

BlockOptions options_of(const Settings& settings) {
  const std::string& norm = settings.word("norm");
  return {.norm = norm == "post"  ? Norm::post
                  : norm == "pre" ? Norm::pre
                                  : Norm::sandwich,
          .norm_epsilon = 1e-9};
}

class Funnel final : public Stack {
 public:
  Funnel(const Settings& settings, const Sizes& sizes)
      : pool_(settings.integer("pool")),
        queries_only_(settings.flag("pool_q_only")),
        separate_(settings.flag("separate_first")),
        groups_(pool_, separate_) {
    constexpr int64_t kMost = int64_t{1} << 31;
    const BlockOptions options = options_of(settings);
    const auto layers = [&](const std::string& name, int64_t count,
                            const FunnelAttention::Places& places) {
      std::vector<std::shared_ptr<Block>> made;
      for (int64_t i = 0; i < count; ++i)
        made.push_back(register_module(
            name + std::to_string(i),
            std::make_shared<Block>(std::make_shared<FunnelAttention>(sizes, places),
                                    sizes, options)));
      return made;
    };
    FunnelAttention::Places places{
        .own = std::make_shared<DistanceWaves>(sizes.embedding, 1),
        .pool = pool_,
        .separate_first = separate_};
    const FunnelAttention::Places full = places;
    for (const Depth& depth : depths_of(settings)) {
      if (!levels_.empty()) {
        require(rate_ < kMost / pool_, "pool must be so small that fewer than ", kMost,
                " tokens become one in the last block, got ", pool_);
        rate_ *= pool_;
        places.below = std::exchange(
            places.own, std::make_shared<DistanceWaves>(sizes.embedding, rate_));
      }
      const std::string name = "block" + std::to_string(levels_.size()) + "_layer";
      levels_.push_back({layers(name, depth.layers, places), depth.repeats});
    }
    decoder_ = layers("decoder_layer", settings.integer("decoder"), full);
    if (options.norm != Norm::post)
      norm_ = register_module(
          "norm", std::make_shared<LayerNorm>(sizes.embedding, options.norm_epsilon));
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t pool = settings.integer("pool");
    const bool queries_only = settings.flag("pool_q_only");
    int64_t keys = settings.integer("decoder") * tokens, between = 0, rows = tokens;
    bool pooled = false;
    for (const auto& [layers, repeats] : depths_of(settings)) {
      const int64_t below = rows;
      if (pooled) rows = (rows + pool - 1) / pool;
      keys += layers * repeats * rows;
      if (pooled && queries_only) keys += below - rows;
      if (pooled) between += TokenGroups::numbers_kept(pool, sizes.embedding);
      pooled = true;
    }
    return PatternAttention::numbers_kept(keys, sizes) + between;
  }

 private:
  struct Level {
    std::vector<std::shared_ptr<Block>> layers;
    int64_t repeats;
  };

  static Tensor on_device_of(const Tensor& x, const Tensor& tokens) {
    return tokens.defined() ? tokens.to(x.device()) : tokens;
  }

  Stream run(const Tensor& x, Pass& pass) override {
    Pass inner = pass;
    Stream in{.x = x, .tokens = on_device_of(x, pass.mask.tokens)};
    if (pass.state && !in.tokens.defined())
      in.tokens = torch::ones({x.size(0), x.size(1)}, x.options().dtype(torch::kBool));
    Stream out = finished(through(0, in, {}, inner), inner, &Block::forward);
    pass.draw = inner.draw;
    if (pass.state) pass.state->tokens += x.size(1);
    return out;
  }

  // What comes out of a level and those above it.
  Stream through(size_t number, const Stream& in, const Stream& below,
                 Pass& pass) const {
    const Stream h = layers(number, in, below, pass, &Block::forward);
    if (number + 1 == levels_.size() || h.x.size(1) == 0) return h;
    Record* const state =
        pass.state ? &pass.state->part("groups" + std::to_string(number)) : nullptr;
    const bool causal = pass.mask.causal;
    const Stream up = through(number + 1, groups_.pooled(h, causal, state), h, pass);
    if (decoder_.empty()) return up;
    const Tensor back = groups_.repeated(up.x, h.x.size(1), causal, state);
    return {.x = number == 0 || causal ? h.x + back : back, .tokens = h.tokens};
  }

  // The layers of a level, for tokens `h` pooled from `below`.
  template <class Form>
  Stream layers(size_t number, Stream h, const Stream& below, Pass& pass,
                Form form) const {
    const auto& [blocks, repeats] = levels_[number];
    bool sees_below = number > 0 && queries_only_;
    pass.mask.tokens = h.tokens;
    for (size_t i = 0; i < blocks.size(); ++i)
      for (int64_t again = 0; again < repeats; ++again) {
        // A step that completes no group still brings keys of the level below.
        if (h.x.size(1) == 0 && !sees_below) return h;
        const Inside part(pass, "block" + std::to_string(number) + "_layer" +
                                    std::to_string(i) + "_" + std::to_string(again));
        if (sees_below)
          pass.side = {.x = blocks[i]->mixer_input(below.x), .tokens = below.tokens};
        h.x = ((*blocks[i]).*form)(h.x, pass);
        pass.side = {};
        sees_below = false;
      }
    return h;
  }

  // The layers at full length, or the places of what there is of shorter length.
  template <class Form>
  Stream finished(Stream h, Pass& pass, Form form) const {
    pass.mask.tokens = h.tokens;
    for (size_t i = 0; i < decoder_.size(); ++i) {
      const Inside part(pass, "decoder_layer" + std::to_string(i));
      h.x = ((*decoder_[i]).*form)(h.x, pass);
    }
    if (decoder_.empty() && levels_.size() > 1) {
      const int64_t before = pass.state ? pass.state->tokens : 0,
                    first = (before + rate_ - 1) / rate_, count = h.x.size(1);
      const auto whole = torch::TensorOptions(torch::kLong).device(h.x.device());
      h.positions = torch::arange(first, first + count, whole) * rate_;
      if (separate_ && !pass.mask.causal)
        h.positions = (h.positions - (rate_ - 1)).clamp_min(0);
    }
    if (norm_) h.x = norm_->forward(h.x);
    return h;
  }

  // By matrices of who is in which group and of who gets which.
  Stream define(const Tensor& x, Pass& pass) override {
    Pass inner = pass;
    const bool causal = pass.mask.causal;
    std::vector<Stream> levels;
    std::vector<Tensor> gets;  // [n, G]
    Stream in{.x = x, .tokens = on_device_of(x, pass.mask.tokens)}, below;
    for (size_t number = 0; number < levels_.size(); ++number) {
      if (number > 0) {
        const Tensor member = members(below.x.size(1), causal).to(x.options());
        gets.push_back(causal ? followers(below.x.size(1)).to(x.options())
                              : member.t());
        Tensor shares = member.unsqueeze(0);
        if (below.tokens.defined())
          shares = shares * below.tokens.unsqueeze(1).to(x.scalar_type());
        Tensor count = shares.sum(2, /*keepdim=*/true);
        if (below.tokens.defined()) in.tokens = count.squeeze(2) > 0;
        if (causal) count = count + (pool_ - member.sum(1)).unsqueeze(0).unsqueeze(2);
        in.x = (shares / count.clamp_min(1)).matmul(below.x);
      }
      levels.push_back(layers(number, in, below, inner, &Block::reference));
      below = levels.back();
    }
    Stream out = below;
    if (!decoder_.empty()) {
      for (size_t number = levels.size() - 1; number-- > 0;) {
        out.x = gets[number].matmul(out.x);
        if (number == 0 || causal) out.x = out.x + levels[number].x;
      }
      out.tokens = levels[0].tokens;
    }
    return finished(out, inner, &Block::reference);
  }

  // [G, n]: 1 where group g pools token i.
  Tensor members(int64_t count, bool causal) const {
    const Tensor i = torch::arange(count).unsqueeze(0);
    if (causal) {
      const Tensor end = torch::arange(0, count, pool_).unsqueeze(1);
      return (i <= end).logical_and(i > end - pool_);
    }
    const int64_t alone = separate_ ? 1 : 0;
    const Tensor group = torch::div(i - alone + pool_, pool_, "floor") - 1 + alone;
    const int64_t all = count == 0 ? 0 : group[0][count - 1].item<int64_t>() + 1;
    return group == torch::arange(all).unsqueeze(1);
  }

  // [n, G]: 1 where token i gets group g of a causal pass.
  Tensor followers(int64_t count) const {
    const Tensor i = torch::arange(count).unsqueeze(1),
                 end = torch::arange(0, count, pool_).unsqueeze(0);
    return (end <= i).logical_and(end > i - pool_);
  }

  int64_t pool_, rate_ = 1;  // rate_: tokens that one of the last block stands for
  bool queries_only_, separate_;
  TokenGroups groups_;
  std::vector<Level> levels_;
  std::vector<std::shared_ptr<Block>> decoder_;
  std::shared_ptr<LayerNorm> norm_;
};

}  // namespace

constinit const Mechanism catalogue::funnel{
    .name = "funnel",
    .summary = "blocks of layers over fewer and fewer tokens, and back to all of them",
    .paper = "Dai et al. 2020, arXiv:2006.03236",
    .classes = "fixed patterns, downsampling",
    .time = {"N*N*d", 2},
    .memory = {"N*E", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .grouped = true},
    .state =
        "keys and values of every layer at the length of its block, and between two "
        "blocks the last pool tokens",
    .state_size = Funnel::state_size,
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = false},
    .full = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{blocks: [1, 1], decoder: 1, norm: pre}",
    .make = made_as<Stack, Funnel>(),
};

}  // namespace longspan
