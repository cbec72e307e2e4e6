// Sets: every token looks at all others over a few learned, induced points, which look
// at all tokens first; nothing depends on the order. Lee et al. 2019, arXiv:1810.00825.
//
// ISAB(X) = MAB(X, MAB(I, X)), or without induced points SAB(X) = MAB(X, X), where MAB
// (multihead_block.h) has residual, norms and feed-forward of its own: it is the whole
// block. The norms are there as in the paper's formulas; the score scale is that of the
// authors' code, by the width of all heads together. With a context Y the points and
// the tokens look at Y: MAB(X, MAB(I, Y)).

#include <torch/nn/init.h>

#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/multihead_block.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "induced",
     .standard = "32",
     .help = "learned points between the tokens, m; 0: tokens look at each other",
     .least = 0},
    {.name = "norm",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "layer norms inside the block"},
    {.name = "scale",
     .kind = Kind::word,
     .standard = "full_dim",
     .help = "scores are divided by the root of the width of all heads or of one",
     .choices = "full_dim|head_dim"},
};

class SetTransformer final : public Mixer {
 public:
  SetTransformer(const Settings& settings, const Sizes& sizes) {
    const MultiheadBlock::Options options{
        .norm = settings.flag("norm"),
        .full_scale = settings.word("scale") == "full_dim"};
    const auto block = [&](const char* name) {
      return register_module(name, std::make_shared<MultiheadBlock>(sizes, options));
    };
    if (const int64_t count = settings.integer("induced"); count > 0) {
      points_ = register_parameter("points", torch::empty({1, count, sizes.embedding}));
      torch::nn::init::xavier_uniform_(points_[0]);
      points_block_ = block("points_block");
    }
    tokens_block_ = block("tokens_block");
  }

  Sight sight(int64_t tokens, bool) override {
    const auto pairs = [](int64_t size, Sees sees) {
      return torch::full({1, size, size}, static_cast<int64_t>(sees), torch::kByte);
    };
    if (!points_block_) return {.pairs = pairs(tokens, Sees::directly)};
    constexpr int64_t kPoints = 2;
    const auto directly = static_cast<int64_t>(Sees::directly);
    Tensor all = pairs(tokens + kPoints, Sees::through_memory);
    all.slice(1, 0, kPoints).fill_(directly);
    all.slice(2, 0, kPoints).fill_(directly);
    all.slice(1, 0, kPoints).slice(2, 0, kPoints) = torch::eye(kPoints, torch::kByte);
    return {.pairs = all, .memory_rows = kPoints, .memory_columns = kPoints};
  }

 private:
  Tensor run(const Tensor& x, Pass& pass) override {
    Stream seen = key_tokens(x, pass);
    if (points_block_)
      seen = {
          .x = points_block_->forward(points_, seen.x, seen.tokens, dropout_of(pass))};
    return tokens_block_->forward(x, seen.x, seen.tokens, dropout_of(pass));
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    Stream seen = key_tokens(x, pass);
    if (points_block_)
      seen = {.x = points_block_->reference(points_, seen.x, seen.tokens)};
    return tokens_block_->reference(x, seen.x, seen.tokens);
  }

  Tensor points_;  // [1, m, E]
  std::shared_ptr<MultiheadBlock> points_block_, tokens_block_;
};

}  // namespace

constinit const Mechanism catalogue::set_transformer{
    .name = "set_transformer",
    .summary = "a set: tokens look at all others over learned points",
    .paper = "Lee et al. 2019, arXiv:1810.00825",
    .classes = "memory",
    .time = {"N*induced*d", 1},
    .memory = {"N*d", 1},
    .can = {.padding = true, .cross = true, .dropout = true, .grouped = true},
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = false},
    .full = true,
    .settings = kSettings,
    .test_settings = "{induced: 5}",
    .make = made_as<Mixer, SetTransformer>(),
};

}  // namespace longspan
