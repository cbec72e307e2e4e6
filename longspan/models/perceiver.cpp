// A few learned latents look at all tokens and then, in layers of their own, at each
// other, again and again. Jaegle et al. 2021, arXiv:2103.03206; with one row for every
// token again Jaegle et al. 2021, arXiv:2107.14795.
//
// In the causal form (Hawthorne et al. 2022, arXiv:2202.07765) tokens are their own
// latents: each looks at the tokens up to itself, then at itself and the k - 1 latents
// before it. Rows are those of the last k tokens. What a row depends on through the
// layers reaches further back than k tokens, so as many latents as that are computed:
// a row is the same in every sequence that begins alike, and decoding gives it.
//
// Positions are the model's, not Fourier features of each look. Latents are as wide as
// tokens, all looks have the same number of heads, and tokens that look at the latents
// in the end keep what they were (their residual).

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/head_projections.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/attention/projected.h"
#include "longspan/base/error.h"
#include "longspan/kernels/total.h"
#include "longspan/models/block.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "latents",
     .standard = "512",
     .help = "how many, k; in the causal form the last k tokens",
     .least = 1},
    {.name = "layers",
     .standard = "6",
     .help = "layers among the latents after they looked at the tokens",
     .least = 0},
    {.name = "repeats",
     .standard = "8",
     .help = "how often they look at the tokens, with layers after each look; the "
             "causal form computes k + repeats*layers*(k - 1) latents: take few",
     .least = 1},
    {.name = "shared_repeats",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "one set of weights for all repeats but the first"},
    {.name = "output",
     .kind = Kind::word,
     .standard = "latents",
     .help = "what comes out: the latents, or tokens that looked at the latents, one "
             "row for every token",
     .choices = "latents|tokens"},
};

// Queries over another sequence, pass.context, that is normalised here. With a decoding
// state the context is as many new tokens as there are queries.
class CrossAttention final : public Mixer {
 public:
  explicit CrossAttention(const Sizes& sizes)
      : projections_(*this, "", sizes, /*has_bias=*/false) {
    belongs_to(catalogue::dense);
    norm_ = register_module("norm", std::make_shared<LayerNorm>(
                                        sizes.embedding, BlockOptions{}.norm_epsilon));
    attention_ = register_module("attention", make<Attention>(catalogue::dense, sizes));
  }

 private:
  Tensor run(const Tensor& x, Pass& pass) override {
    if (!pass.state) return over(pass.context.x, x, pass, &Attention::forward);
    Pass step = pass;
    step.context = {};
    step.positions = Tensor();
    return over(pass.context.x, x, step, &Attention::forward);
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    return over(pass.context.x, x, pass, &Attention::reference);
  }

  template <class Form>
  Tensor over(const Tensor& context, const Tensor& x, Pass& pass, Form form) const {
    const Tensor seen = norm_->forward(context);
    return projections_.out(((*attention_).*form)(
        projections_.q(x), projections_.k(seen), projections_.v(seen), pass));
  }

  HeadProjections projections_;
  std::shared_ptr<LayerNorm> norm_;
  std::shared_ptr<Attention> attention_;
};

// The last `count` of `tokens` tokens: [n]. Where `real` [B, N] says which are padding,
// up to the last real one of each example: [B, n].
Tensor last_tokens(int64_t count, int64_t tokens, const Tensor& real,
                   torch::Device device) {
  const auto options = torch::TensorOptions(torch::kLong).device(device);
  const Tensor at = torch::arange(count, options);
  if (!real.defined()) return at + (tokens - count);
  const Tensor numbers = torch::arange(1, tokens + 1, options);
  const Tensor extent = (real.to(torch::kLong) * numbers).amax(1, /*keepdim=*/true);
  return (extent - count).clamp_min(0) + at;
}

// Rows `at` of x [B, N, E], those of last_tokens().
Tensor rows_at(const Tensor& x, const Tensor& at) {
  if (at.dim() == 1) return x.index_select(1, at);
  return x.gather(1, at.unsqueeze(2).expand({-1, -1, x.size(2)}));
}

int64_t distinct_repeats(const Settings& settings) {
  const int64_t repeats = settings.integer("repeats");
  return settings.flag("shared_repeats") ? std::min<int64_t>(repeats, 2) : repeats;
}

class Perceiver final : public Stack {
 public:
  Perceiver(const Settings& settings, const Sizes& sizes)
      : count_(settings.integer("latents")), repeats_(settings.integer("repeats")) {
    latents_ = register_parameter("latents",
                                  0.02 * truncated_normal({count_, sizes.embedding}));
    const auto block = [&](const std::string& name, std::shared_ptr<Mixer> mixer) {
      return register_module(
          name, std::make_shared<Block>(std::move(mixer), sizes, BlockOptions{}));
    };
    const auto cross = [&] { return std::make_shared<CrossAttention>(sizes); };
    const int64_t layers = settings.integer("layers");
    for (int64_t i = 0; i < distinct_repeats(settings); ++i) {
      const std::string name = "repeat" + std::to_string(i) + "_";
      Weights& mine = weights_.emplace_back();
      mine.cross = block(name + "cross", cross());
      // Of k latents a window of k - 1 on each side is all.
      for (int64_t layer = 0; layer < layers; ++layer)
        mine.layers.push_back(block(
            name + "layer" + std::to_string(layer),
            make_mixer(catalogue::sliding, sizes, {{"window", Value(count_ - 1)}})));
    }
    reach_ = count_ + repeats_ * layers * (count_ - 1);
    if (settings.word("output") == "tokens") decoder_ = block("decoder", cross());
  }

  bool makes_new_tokens() const override { return !decoder_; }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t layers = settings.integer("repeats") * settings.integer("layers"),
                  window = std::min(tokens, settings.integer("latents") - 1),
                  key = sizes.key_heads * (sizes.head_width + sizes.value_width);
    return distinct_repeats(settings) * tokens * key +
           layers * PatternAttention::numbers_kept(window, sizes);
  }

 private:
  struct Weights {  // of a repeat
    std::shared_ptr<Block> cross;
    std::vector<std::shared_ptr<Block>> layers;
  };

  Stream run(const Tensor& x, Pass& pass) override {
    const Stream tokens = tokens_of(x, pass);
    Pass inner = pass;
    const Stream out = pass.state         ? steps(tokens, inner)
                       : pass.mask.causal ? last(tokens, inner)
                                          : summary(tokens, inner, &Block::forward);
    pass.draw = inner.draw;
    pass.losses = inner.losses;
    return out;
  }

  // The causal form with a latent for every token.
  Stream define(const Tensor& x, Pass& pass) override {
    const Stream tokens = tokens_of(x, pass);
    Pass inner = pass;
    if (!pass.mask.causal) return summary(tokens, inner, &Block::reference);
    const Tensor all = through(x, tokens, {}, inner, &Block::reference);
    const int64_t count = x.size(1), rows = std::min(count_, count);
    const Tensor at = torch::arange(count, x.options().dtype(torch::kLong));
    const Tensor& real = tokens.tokens;
    if (!real.defined())
      return {.x = all.slice(1, count - rows), .positions = at.slice(0, count - rows)};
    std::vector<Tensor> xs, reals, positions;
    for (int64_t b = 0; b < x.size(0); ++b) {
      const Tensor places = real[b].nonzero();
      const int64_t end = places.numel() > 0 ? places.max().item<int64_t>() + 1 : 0,
                    first = std::max<int64_t>(end - rows, 0);
      xs.push_back(all[b].slice(0, first, first + rows));
      reals.push_back(real[b].slice(0, first, first + rows));
      positions.push_back(at.slice(0, first, first + rows));
    }
    return {torch::stack(xs), torch::stack(reals), torch::stack(positions)};
  }

  Stream tokens_of(const Tensor& x, const Pass& pass) const {
    require(!pass.mask.causal || !decoder_,
            "output: tokens has no causal form, where rows are the last latents; give "
            "output: latents");
    const Tensor& tokens = pass.mask.tokens;
    return {.x = x, .tokens = tokens.defined() ? tokens.to(x.device()) : tokens};
  }

  // z: [B, n, E], the latents, of the tokens `positions`, or of the last ones. The
  // mask of `pass` is about latents.
  template <class Form>
  Tensor through(Tensor z, const Stream& tokens, const Tensor& positions, Pass& pass,
                 Form form) {
    Record before;
    for (int64_t i = 0; i < repeats_; ++i) {
      const auto distinct = static_cast<int64_t>(weights_.size());
      const int64_t number = std::min(i, distinct - 1);
      const Weights& mine = weights_[static_cast<size_t>(number)];
      const std::string cross = "cross" + std::to_string(number);
      if (pass.state) {
        // Equal weights make equal keys: they are kept once.
        Record& kept = pass.state->part(cross);
        if (i < distinct)
          before = kept;
        else
          kept = before;
      }
      {
        const Inside part(pass, cross);
        pass.context = tokens;
        pass.positions = positions;
        z = ((*mine.cross).*form)(z, pass);
        pass.context = {};
        pass.positions = Tensor();
      }
      for (size_t layer = 0; layer < mine.layers.size(); ++layer) {
        const Inside part(
            pass, "repeat" + std::to_string(i) + "_layer" + std::to_string(layer));
        z = ((*mine.layers[layer]).*form)(z, pass);
      }
    }
    return z;
  }

  template <class Form>
  Stream summary(const Stream& tokens, Pass& pass, Form form) {
    const Tensor& x = tokens.x;
    const Tensor mask = std::exchange(pass.mask.tokens, {});
    const Tensor first = spread(latents_, {x.size(0), count_, x.size(2)});
    const Tensor z = through(first, tokens, {}, pass, form);
    pass.mask.tokens = mask;
    if (!decoder_) return {.x = z};
    const Inside part(pass, "decoder");
    pass.context = {.x = z};
    Stream out{.x = ((*decoder_).*form)(x, pass), .tokens = tokens.tokens};
    pass.context = {};
    return out;
  }

  // Causal: the latents that the last rows depend on, and of them the last.
  Stream last(const Stream& tokens, Pass& pass) {
    const auto& [x, real, unused] = tokens;
    const int64_t count = x.size(1), rows = std::min(count_, count),
                  latents = std::min(reach_, count);
    const Tensor of_latents = last_tokens(latents, count, real, x.device());
    const Tensor of_rows = last_tokens(rows, count, real, x.device());
    Stream out{.positions = of_rows};
    Tensor positions;
    if (real.defined()) {
      pass.mask.tokens = real.gather(1, of_latents);
      positions = of_latents;
      out.tokens = real.gather(1, of_rows);
    }
    const Tensor z =
        through(rows_at(x, of_latents), tokens, positions, pass, &Block::forward);
    out.x = rows_at(z, of_rows - of_latents.slice(-1, 0, 1));
    return out;
  }

  // Decoding: a row for every new token.
  Stream steps(const Stream& tokens, Pass& pass) {
    Record& state = *pass.state;
    const int64_t first = state.tokens, count = tokens.x.size(1);
    const Tensor positions =
        torch::arange(first, first + count, tokens.x.options().dtype(torch::kLong));
    const Tensor z = through(tokens.x, tokens, positions, pass, &Block::forward);
    state.tokens += count;
    return {.x = z, .tokens = tokens.tokens};
  }

  int64_t count_, repeats_, reach_ = 0;
  Tensor latents_;  // [k, E]
  std::vector<Weights> weights_;
  std::shared_ptr<Block> decoder_;
};

}  // namespace

constinit const Mechanism catalogue::perceiver{
    .name = "perceiver",
    .summary = "a few latents look at all tokens, then at each other",
    .paper = "Jaegle et al. 2021, arXiv:2103.03206",
    .classes = "memory, downsampling",
    .time = {"N*latents*repeats*d", 1},
    .memory = {"N*repeats*E", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .grouped = true},
    .state =
        "keys and values of all tokens for each distinct look at them, and of the "
        "last latents for each layer",
    .state_size = Perceiver::state_size,
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = false},
    .full = true,
    .settings = kSettings,
    .test_settings = "{latents: 17, layers: 1, repeats: 3}",
    .make = made_as<Stack, Perceiver>(),
};

}  // namespace longspan
