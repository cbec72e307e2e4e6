// Tokens on a ring (with open ends) that see their neighbours, and a relay that sees
// and is seen by all, in rounds. Guo et al. 2019, arXiv:1902.09113.
//
// In a round a token looks from its normalised state at those of itself and of its
// neighbours, at its input and at the relay; then the relay looks at itself and at all
// tokens. There is no residual: what it would add is among the keys.

#include <limits>
#include <optional>
#include <tuple>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/pool.h"

namespace longspan {
namespace {

using torch::Tensor;

// In the type of x, which may be wider than that of the weights.
Tensor widened(const Linear& linear, const Tensor& x) {
  const auto as_x = [&](const Tensor& y) {
    return y.defined() ? y.to(x.scalar_type()) : y;
  };
  return Linear{as_x(linear.weight), as_x(linear.bias)}(x);
}

// Keys of an attention: states, and of which tokens.
struct Seen {
  Tensor x;  // [B, n, E]
  std::optional<Layout> layout = {};
  Tensor to = {};
};

class Star final : public Mixer {
 public:
  Star(const Settings& settings, const Sizes& sizes)
      : sizes_(sizes), count_(settings.integer("rounds")) {
    const int64_t distinct = settings.flag("per_round") ? count_ : 1;
    for (int64_t round = 0; round < distinct; ++round) {
      const std::string name =
          distinct == 1 ? "" : "round" + std::to_string(round) + "_";
      rounds_.push_back({.norm_weight = register_parameter(
                             name + "norm_weight", torch::ones(sizes.embedding)),
                         .norm_bias = register_parameter(name + "norm_bias",
                                                         torch::zeros(sizes.embedding)),
                         .ring = projections(name + "ring_"),
                         .relay = projections(name + "relay_")});
    }
  }

  Sight sight(int64_t tokens, bool) override {
    const Positions at(tokens + 1);  // the relay first
    const Tensor seen = (at.query - at.key).abs().le(1) | at.query.eq(0) | at.key.eq(0);
    return {.pairs = torch::where(seen, static_cast<int64_t>(Sees::directly),
                                  static_cast<int64_t>(Sees::through_memory))
                         .unsqueeze(0)
                         .to(torch::kByte),
            .memory_rows = 1,
            .memory_columns = 1};
  }

 private:
  struct Projections {
    Linear q, k, v, out;
  };
  struct Round {
    Tensor norm_weight, norm_bias;  // [E]
    Projections ring, relay;
  };

  Projections projections(const std::string& name) {
    const auto linear = [&](const char* part, int64_t out, int64_t in,
                            bool has_bias = true) {
      return make_linear(*this, name + part, out, in, has_bias);
    };
    const auto& [embedding, heads, key_heads, width, value_width] =
        std::tie(sizes_.embedding, sizes_.heads, sizes_.key_heads, sizes_.head_width,
                 sizes_.value_width);
    return {.q = linear("q", heads * width, embedding),
            // A softmax is the same whatever is added to all keys.
            .k = linear("k", key_heads * width, embedding, /*has_bias=*/false),
            .v = linear("v", key_heads * value_width, embedding),
            .out = linear("out", embedding, heads * value_width)};
  }

  const Round& round(int64_t number) const {
    return rounds_[rounds_.size() == 1 ? 0 : static_cast<size_t>(number)];
  }

  Tensor attended(const Projections& by, const Tensor& x,
                  const std::vector<Seen>& seen) const {
    std::vector<Source> sources;
    for (const auto& [keys, layout, to] : seen)
      sources.push_back({.k = in_heads(widened(by.k, keys), sizes_.key_heads),
                         .v = in_heads(widened(by.v, keys), sizes_.key_heads),
                         .layout = layout,
                         .to = to});
    const Tensor q = in_heads(widened(by.q, x), sizes_.heads);
    return torch::leaky_relu(
        widened(by.out, joined_heads(block_attention({.q = q}, sources).out)));
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    const int64_t tokens = x.size(1);
    // Rounding adds up over rounds.
    const Tensor input =
        x.to(x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
    PoolInputs inputs{.x = input.unsqueeze(1)};
    Tensor to;
    if (const Tensor& real = pass.mask.tokens; real.defined()) {
      inputs.keep = real.to(x.device()).unsqueeze(1);
      to = open_where(real.to(x.device()));
    }
    const Layout near(tokens, tokens, window_of_keys(1, 1)),
        itself(tokens, tokens, window_of_keys(0, 0));
    Tensor relay = pool_spans(inputs, {{0, tokens}}, Pooling::mean).out.squeeze(1);
    Tensor state = input;
    for (int64_t number = 0; number < count_; ++number) {
      const Round& mine = round(number);
      const Tensor normal =
          longspan::layer_norm(state, mine.norm_weight.to(input.scalar_type()),
                               mine.norm_bias.to(input.scalar_type()));
      state =
          attended(mine.ring, normal, {{normal, near, to}, {input, itself}, {relay}});
      relay = attended(mine.relay, relay, {{relay}, {state, {}, to}});
    }
    return state.to(x.scalar_type());
  }

  // Every row of x [B, n, E] over keys [B, n, m, E] of its own, where `seen` [B, n, m].
  Tensor defined(const Projections& by, const Tensor& x, const Tensor& keys,
                 const Tensor& seen) const {
    const auto of = [](const Linear& linear, const Tensor& y) {
      return torch::linear(y.flatten(0, 1), linear.weight, linear.bias);
    };
    const Tensor heads =
        masked_attention(in_heads(of(by.q, x.unsqueeze(2)), sizes_.heads),
                         in_heads(of(by.k, keys), sizes_.key_heads),
                         in_heads(of(by.v, keys), sizes_.key_heads),
                         seen.flatten(0, 1).unsqueeze(1).unsqueeze(1), Pass());
    return torch::leaky_relu(
               of(by.out, heads.flatten(1).view({x.size(0), x.size(1), -1})))
        .view(x.sizes());
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const int64_t examples = x.size(0), tokens = x.size(1);
    const Tensor open =
        torch::ones({examples, tokens, 1}, x.options().dtype(torch::kBool));
    const Tensor real = pass.mask.tokens.defined()
                            ? pass.mask.tokens.to(x.device()).unsqueeze(2)
                            : open;
    const auto next = [&](const Tensor& y, int64_t by) {  // y[i + by], else 0
      return torch::constant_pad_nd(y, {0, 0, 1, 1}).slice(1, 1 + by, 1 + by + tokens);
    };
    const Tensor ring_seen =
        torch::cat({next(real, -1), real, next(real, 1), open, open}, 2);
    const Tensor relay_seen =
        torch::cat({open.slice(1, 0, 1), real}, 1).transpose(1, 2);
    const Tensor counted = real.to(x.scalar_type());
    Tensor state = x, relay = (x * counted).sum(1, /*keepdim=*/true) /
                              counted.sum(1, /*keepdim=*/true).clamp_min(1);
    for (int64_t number = 0; number < count_; ++number) {
      const Round& mine = round(number);
      const Tensor normal =
          layer_norm_reference(state, mine.norm_weight, mine.norm_bias);
      const Tensor ring = torch::stack(
          {next(normal, -1), normal, next(normal, 1), x, relay.expand_as(x)}, 2);
      state = defined(mine.ring, normal, ring, ring_seen);
      relay = defined(mine.relay, relay, torch::cat({relay, state}, 1).unsqueeze(1),
                      relay_seen);
    }
    return state;
  }

  Sizes sizes_;
  int64_t count_;
  std::vector<Round> rounds_;  // one for all, or one each
};

constexpr Setting kSettings[] = {
    {.name = "rounds",
     .standard = "2",
     .help = "how often tokens and relay look at each other",
     .least = 1},
    {.name = "per_round",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "weights of their own for every round"},
};

}  // namespace

constinit const Mechanism catalogue::star{
    .name = "star",
    .summary = "neighbours on a ring, and a relay between all",
    .paper = "Guo et al. 2019, arXiv:1902.09113",
    .classes = "fixed patterns, memory",
    .time = {"N*rounds*d", 1},
    .memory = {"N*rounds*d", 1},
    .can = {.padding = true, .grouped = true},
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = false},
    .full = true,
    .settings = kSettings,
    .make = made_as<Mixer, Star>(),
};

}  // namespace longspan
