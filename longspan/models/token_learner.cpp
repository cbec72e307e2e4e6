// A few weighted means of all tokens, with weights that each of them learns to give,
// in place of the tokens; perhaps spread over the tokens again at the end. Ryoo et al.
// 2021, arXiv:2106.11297.
//
// The images of the paper are sequences here: its convolutions go along one axis.
// Nothing is dropped inside the maps that weigh tokens.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/prepare.h"
#include "longspan/attention/projected.h"
#include "longspan/base/error.h"
#include "longspan/kernels/total.h"
#include "longspan/models/block.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "tokens", .standard = "8", .help = "how many are learned, k", .least = 1},
    {.name = "version",
     .kind = Kind::word,
     .standard = "mlp",
     .help = "how weights come of tokens: by two maps and a softmax over all tokens "
             "(1.1), or by four convolutions and a sigmoid (1.0)",
     .choices = "mlp|convolution"},
    {.name = "hidden",
     .standard = "64",
     .help = "width inside the maps that make weights of tokens",
     .least = 1},
    {.name = "before",
     .standard = "0",
     .help = "layers over all tokens, before some are learned",
     .least = 0},
    {.name = "layers",
     .standard = "1",
     .help = "layers over the learned tokens",
     .least = 0},
    {.name = "attention",
     .kind = Kind::mechanism,
     .standard = "dense",
     .help = "the mechanism of all these layers: its name or {name: .., setting: ..}"},
    {.name = "fuse",
     .kind = Kind::boolean,
     .standard = "false",
     .help =
         "spread the learned tokens over all tokens again, one row for every token"},
};

constexpr int64_t kConvolutions = 4, kWidth = 3;  // of a convolution

using Blocks = std::vector<std::shared_ptr<Block>>;

// x [B, N, n], 0 where `real` [B, N] is false.
Tensor without_padding(const Tensor& x, const Tensor& real) {
  return real.defined() ? x.masked_fill(real.logical_not().unsqueeze(2), 0) : x;
}

// y[i] = x[i + by], 0 beyond the ends. x: [B, N, n]
Tensor moved(const Tensor& x, int64_t by) {
  const int64_t tokens = x.size(1);
  return torch::constant_pad_nd(x, {0, 0, 1, 1}).slice(1, 1 + by, 1 + by + tokens);
}

class TokenLearner final : public Stack {
 public:
  TokenLearner(const Settings& settings, const Sizes& sizes)
      : count_(settings.integer("tokens")), by_mlp_(settings.word("version") == "mlp") {
    const int64_t embedding = sizes.embedding, hidden = settings.integer("hidden");
    norm_ = norm("norm", embedding);
    if (by_mlp_) {
      in_ = make_linear(*this, "in", hidden, embedding, /*has_bias=*/true);
      // A softmax is the same whatever is added to all scores.
      out_ = make_linear(*this, "out", count_, hidden, /*has_bias=*/false);
    } else {
      for (int64_t i = 0; i < kConvolutions; ++i)
        convolutions_.push_back(
            make_linear(*this, "convolution" + std::to_string(i), kWidth * count_,
                        i == 0 ? embedding : count_, /*has_bias=*/false));
    }
    before_ = layers("before", settings.integer("before"), settings, sizes);
    Sizes few = sizes;
    few.longest = count_;
    after_ = layers("layer", settings.integer("layers"), settings, few);
    if (!settings.flag("fuse")) return;
    learned_norm_ = norm("learned_norm", embedding);
    mix_ = make_linear(*this, "mix", count_, count_, /*has_bias=*/true);
    torch::nn::init::zeros_(mix_.weight);
    mixed_norm_ = norm("mixed_norm", embedding);
    fuse_norm_ = norm("fuse_norm", embedding);
    fuse_in_ = make_linear(*this, "fuse_in", hidden, embedding, /*has_bias=*/true);
    fuse_out_ = make_linear(*this, "fuse_out", count_, hidden, /*has_bias=*/true);
  }

  bool makes_new_tokens() const override { return !fuse_norm_; }

 private:
  std::shared_ptr<LayerNorm> norm(const std::string& name, int64_t width) {
    return register_module(
        name, std::make_shared<LayerNorm>(width, BlockOptions{}.norm_epsilon));
  }

  Blocks layers(const std::string& name, int64_t count, const Settings& settings,
                Sizes sizes) {
    const Chosen chosen = settings.mechanism("attention");
    const Mechanism& row = find_mechanism(chosen.name);
    require(!row.can.side && row.can.carry == Carry::none, "attention: ", row.name,
            " cannot be a layer inside, as it has a second stream or a carry");
    Blocks blocks;
    sizes.layers = std::max<int64_t>(count, 1);
    for (sizes.layer = 0; sizes.layer < count; ++sizes.layer)
      blocks.push_back(register_module(
          name + std::to_string(sizes.layer),
          std::make_shared<Block>(make_mixer(row, sizes, chosen.settings), sizes,
                                  BlockOptions{})));
    return blocks;
  }

  Stream run(const Tensor& x, Pass& pass) override {
    Pass inner = pass;
    const Stream out = through(
        x, inner, &Block::forward,
        [&](const Tensor& all, const Tensor& real) {
          return by_mlp_ ? means(all, real) : sums(all, real);
        },
        [&](const Tensor& all, const Tensor& learned) { return fused(all, learned); });
    pass.draw = inner.draw;
    pass.losses = inner.losses;
    return out;
  }

  Stream define(const Tensor& x, Pass& pass) override {
    Pass inner = pass;
    return through(
        x, inner, &Block::reference,
        [&](const Tensor& all, const Tensor& real) {
          return weights_defined(all, real).matmul(without_padding(all, real));
        },
        [&](const Tensor& all, const Tensor& learned) {
          return fused_defined(all, learned);
        });
  }

  template <class Form, class Learn, class Fuse>
  Stream through(Tensor x, Pass& pass, Form form, Learn learn, Fuse fuse) {
    const Tensor tokens = std::exchange(pass.mask.tokens, {});
    const Tensor real = tokens.defined() ? tokens.to(x.device()) : tokens;
    const auto pass_layers = [&](Tensor y, const Blocks& blocks, const char* name) {
      for (size_t i = 0; i < blocks.size(); ++i) {
        const Inside part(pass, name + std::to_string(i));
        y = ((*blocks[i]).*form)(y, pass);
      }
      return y;
    };
    pass.mask.tokens = real;
    x = pass_layers(x, before_, "before");
    pass.mask.tokens = Tensor();
    const Tensor learned = pass_layers(learn(x, real), after_, "layer");
    if (fuse_norm_) return {.x = fuse(x, learned), .tokens = real};
    Stream out{.x = learned};
    // Of an example without tokens nothing is learned.
    if (real.defined()) out.tokens = real.any(1, /*keepdim=*/true).expand({-1, count_});
    return out;
  }

  // Version 1.1, [B, k, E]. The second map of the weights is what queries the hidden
  // tokens, so that no weights of k x N are held.
  Tensor means(const Tensor& x, const Tensor& real) const {
    const Tensor hidden = activate(longspan::linear(norm_->forward(x), in_.weight),
                                   in_.bias, Activation::gelu);
    const Tensor& q = out_.weight;
    Source tokens{.k = hidden.unsqueeze(1), .v = x.unsqueeze(1)};
    if (real.defined()) tokens.to = open_where(real);
    return block_attention({.q = spread(q, {x.size(0), 1, q.size(0), q.size(1)})},
                           {tokens}, {.scale = 1})
        .out.squeeze(1);
  }

  // Version 1.0, [B, k, E].
  Tensor sums(const Tensor& x, const Tensor& real) const {
    Tensor y = norm_->forward(x);
    for (size_t i = 0; i < convolutions_.size(); ++i) {
      if (i > 0) y = activate(y, {}, Activation::gelu);
      const auto parts = convolutions_[i](without_padding(y, real)).split(count_, 2);
      y = moved(parts[0], -1) + parts[1] + moved(parts[2], 1);
    }
    const Tensor weights = without_padding(y.sigmoid(), real);
    const Tensor sum =
        longspan::matmul(at_least_float(weights).transpose(1, 2), at_least_float(x));
    const Tensor mean = real.defined() ? sum / real.sum(1).clamp_min(1).view({-1, 1, 1})
                                       : sum / std::max<int64_t>(x.size(1), 1);
    return mean.to(x.scalar_type());
  }

  // [B, k, N], for both versions.
  Tensor weights_defined(const Tensor& x, const Tensor& real) const {
    const Tensor normal = norm_->forward(x);
    if (by_mlp_) {
      const Tensor hidden = torch::gelu(torch::linear(normal, in_.weight, in_.bias));
      const Tensor scores = torch::linear(hidden, out_.weight).transpose(1, 2);
      if (!real.defined()) return scores.softmax(2);
      const Tensor padding = real.logical_not().unsqueeze(1);
      return scores.masked_fill(padding, hidden_score(x.scalar_type()))
          .softmax(2)
          .masked_fill(padding, 0);
    }
    Tensor y = normal;
    for (size_t i = 0; i < convolutions_.size(); ++i) {
      const Tensor in = without_padding(i == 0 ? y : torch::gelu(y), real);
      const Tensor near = torch::cat({moved(in, -1), in, moved(in, 1)}, 2);
      // [3k, n] as [k, 3n]
      const Tensor kernel =
          convolutions_[i].weight.view({kWidth, count_, -1}).transpose(0, 1).flatten(1);
      y = torch::linear(near, kernel);
    }
    const Tensor weights = without_padding(longspan::sigmoid(y), real).transpose(1, 2);
    if (!real.defined()) return weights / x.size(1);
    return weights / real.sum(1).clamp_min(1).view({-1, 1, 1});
  }

  // x and what every token takes of the learned ones.
  Tensor fused(const Tensor& x, const Tensor& learned) const {
    const Tensor mixed = mixed_norm_->forward(
        mix_(learned_norm_->forward(learned).transpose(1, 2)).transpose(1, 2));
    const Tensor hidden =
        activate(longspan::linear(fuse_norm_->forward(x), fuse_in_.weight),
                 fuse_in_.bias, Activation::gelu);
    return x + longspan::matmul(longspan::sigmoid(fuse_out_(hidden)), mixed);
  }

  Tensor fused_defined(const Tensor& x, const Tensor& learned) const {
    const Tensor mixed = mixed_norm_->forward(
        mix_.weight.matmul(learned_norm_->forward(learned)) + mix_.bias.unsqueeze(1));
    const Tensor hidden = torch::gelu(
        torch::linear(fuse_norm_->forward(x), fuse_in_.weight, fuse_in_.bias));
    const Tensor gates =
        torch::linear(hidden, fuse_out_.weight, fuse_out_.bias).sigmoid();
    return x + (gates.unsqueeze(3) * mixed.unsqueeze(1)).sum(2);
  }

  int64_t count_;
  bool by_mlp_;
  std::shared_ptr<LayerNorm> norm_, learned_norm_, mixed_norm_, fuse_norm_;
  Linear in_, out_, mix_, fuse_in_, fuse_out_;
  std::vector<Linear> convolutions_;  // [3k, n]: of the token before, itself, the next
  Blocks before_, after_;
};

}  // namespace

constinit const Mechanism catalogue::token_learner{
    .name = "token_learner",
    .summary = "a few weighted means of all tokens in place of the tokens",
    .paper = "Ryoo et al. 2021, arXiv:2106.11297",
    .classes = "downsampling",
    .time = {"N*E*hidden", 1},
    .memory = {"N*E", 1},
    .can = {.padding = true, .grouped = true},
    .can_with =
        [](const Settings& settings, const Sizes& sizes) {
          const Chosen inside = settings.mechanism("attention");
          const Mechanism& row = find_mechanism(inside.name);
          Abilities can = catalogue::token_learner.can;
          for (const char* const layers : {"before", "layers"}) {
            Sizes each = sizes;
            each.layers = settings.integer(layers);
            for (each.layer = 0; each.layer < each.layers; ++each.layer)
              can.samples |= abilities(row, each, inside.settings).samples;
          }
          return can;
        },
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = false},
    .full = true,
    .settings = kSettings,
    .test_settings = "{tokens: 5, hidden: 7}",
    .make = made_as<Stack, TokenLearner>(),
};

}  // namespace longspan
