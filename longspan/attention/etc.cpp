// A long stream whose tokens see a window and all tokens of a second, global stream,
// whose tokens see everything; relative positions and membership as labels of pairs.
// Ainslie et al. 2020, arXiv:2004.08483.
//
// The global stream is pass.side, handed on from layer to layer; without one the layers
// of a model begin with learned tokens. side.positions, ascending, say where the part
// of the sequence begins that a global token stands for: pairs of a token with its own
// global token then have a label of their own; without them pairs between the streams
// have no labels. The global stream has a norm, a residual and a feed-forward of its
// own here; those of the long stream are the block's.

#include <cmath>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "radius",
     .standard = "84",
     .help = "tokens seen on each side, and the token itself",
     .least = 0},
    {.name = "global",
     .standard = "64",
     .help = "learned global tokens where no second stream is given",
     .least = 1},
    {.name = "distance",
     .standard = "12",
     .help = "distances up to this have labels of their own, farther ones share",
     .least = 0},
    {.name = "relative",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "labels of pairs, by distance and membership"},
    {.name = "shared",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "one set of projections for both streams and all four directions"},
};

// Which stream asks and which one answers.
enum Direction { kLongLong, kLongGlobal, kGlobalGlobal, kGlobalLong };
constexpr const char* kDirections[] = {"long_long", "long_global", "global_global",
                                       "global_long"};

class Etc final : public Mixer {
 public:
  Etc(const Settings& settings, const Sizes& sizes, Shared& shared)
      : sizes_(sizes),
        radius_(settings.integer("radius")),
        farthest_(settings.integer("distance")),
        relative_(settings.flag("relative")) {
    const int64_t embedding = sizes.embedding, heads = sizes.heads;
    const auto weight = [&](const std::string& name, int64_t out, int64_t in) {
      return register_parameter(name + "_weight", 0.02 * truncated_normal({out, in}));
    };
    const int64_t key_width = heads * sizes.head_width,
                  value_width = heads * sizes.value_width;
    const bool one = settings.flag("shared");
    for (int way = 0; way < 4; ++way) {
      const std::string name = one ? "" : kDirections[way] + std::string("_");
      const bool first = way == 0 || !one;
      if (way % 2 == 0)
        q_[way] = first ? weight(name + "q", key_width, embedding) : q_[0];
      k_[way] = first ? weight(name + "k", key_width, embedding) : k_[0];
      v_[way] = first ? weight(name + "v", value_width, embedding) : v_[0];
      if (!relative_) continue;
      const int64_t labels = way % 2 == 0 ? 2 * farthest_ + 1 : 2;
      vectors_[way] =
          register_parameter(kDirections[way] + std::string("_vectors"),
                             0.5 * truncated_normal({heads, labels, sizes.head_width}));
      biases_[way] = register_parameter(kDirections[way] + std::string("_labels"),
                                        torch::zeros({heads, labels}));
    }
    q_[kLongGlobal] = q_[kLongLong];
    q_[kGlobalLong] = q_[kGlobalGlobal];
    out_ = weight("out", embedding, value_width);
    global_out_ = weight("global_out", embedding, value_width);
    inner_in_ = weight("inner_in", sizes.inner, embedding);
    inner_out_ = weight("inner_out", embedding, sizes.inner);
    inner_bias_ = register_parameter("inner_bias", torch::zeros(sizes.inner));
    inner_out_bias_ = register_parameter("inner_out_bias", torch::zeros(embedding));
    for (int i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "norm" : "inner_norm";
      norm_weights_[i] = register_parameter(name + "_weight", torch::ones(embedding));
      norm_biases_[i] = register_parameter(name + "_bias", torch::zeros(embedding));
    }
    global_ = shared.parameter("etc_global", [&] {
      return torch::randn({settings.integer("global"), embedding}) * 0.02;
    });
  }

  Sight sight(int64_t tokens, bool) override {
    constexpr int64_t kGlobal = 2;
    const int64_t all = tokens + kGlobal;
    Tensor pairs = torch::full({1, all, all}, int64_t{3}, torch::kByte);
    pairs.slice(1, 0, kGlobal).fill_(1);
    pairs.slice(2, 0, kGlobal).fill_(1);
    const Tensor at = torch::arange(tokens);
    const Tensor near = (at.unsqueeze(1) - at.unsqueeze(0)).abs() <= radius_;
    pairs.slice(1, kGlobal).slice(2, kGlobal).masked_fill_(near, 1);
    return {.pairs = pairs, .memory_rows = kGlobal, .memory_columns = kGlobal};
  }

 private:
  // Both streams as heads of one direction.
  struct Streams {
    Tensor x, z;            // [B, N, E], [B, G, E] normalised
    Tensor tokens, global;  // [B, N], [B, G] bool; undefined: all real
    Tensor own;             // [B|1, N, G] bool: membership; undefined: none is known
  };

  Tensor projected(const Tensor& x, const Tensor& weight) const {
    return in_heads(longspan::linear(x, weight), sizes_.heads);
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(sizes_.head_width)); }

  // The labels of pairs of a direction between the streams, [B|1, N, G] or turned.
  static Tensor membership(const Streams& streams, Direction way) {
    if (!streams.own.defined()) return {};
    return way == kLongGlobal ? streams.own : streams.own.transpose(1, 2);
  }

  Source source(const Streams& streams, Direction way) const {
    const bool of_long = way == kLongLong || way == kGlobalLong;
    const Tensor &from = of_long ? streams.x : streams.z,
                 &real = of_long ? streams.tokens : streams.global;
    Source source{.k = projected(from, k_[way]), .v = projected(from, v_[way])};
    if (real.defined()) source.to = open_where(real);
    const bool between = way == kLongGlobal || way == kGlobalLong;
    const Tensor own = between ? membership(streams, way) : Tensor();
    if (!relative_ || (between && !own.defined())) return source;
    source.bias = {.table = scale() * biases_[way],
                   .vectors = vectors_[way],
                   .first = between ? 0 : -farthest_};
    if (between) source.bias.labels = own.to(torch::kInt).unsqueeze(1);
    return source;
  }

  // The outputs of the long and of the global stream, before their projections.
  std::pair<Tensor, Tensor> attended(const Streams& streams, Pass& pass) const {
    const auto options = [&] {
      BlockAttention all;
      if (pass.training && pass.dropout > 0)
        all.dropout = {.probability = pass.dropout, .key = pass.draw.key()};
      return all;
    };
    const int64_t tokens = streams.x.size(1);
    Source near = source(streams, kLongLong);
    near.layout = Layout(tokens, tokens, window_of_keys(radius_, radius_));
    return {
        block_attention({.q = projected(streams.x, q_[kLongLong])},
                        {near, source(streams, kLongGlobal)}, options())
            .out,
        block_attention({.q = projected(streams.z, q_[kGlobalGlobal])},
                        {source(streams, kGlobalGlobal), source(streams, kGlobalLong)},
                        options())
            .out};
  }

  // One softmax over both sources, by the definition.
  Tensor defined(const Streams& streams, Direction first, Direction second) const {
    const bool of_long = first == kLongLong;
    const Tensor q = projected(of_long ? streams.x : streams.z, q_[first]);
    std::vector<Tensor> scores, hidden, values;
    for (const Direction way : {first, second}) {
      const bool to_long = way == kLongLong || way == kGlobalLong;
      const Tensor &from = to_long ? streams.x : streams.z,
                   &real = to_long ? streams.tokens : streams.global;
      Tensor score = q.matmul(projected(from, k_[way]).transpose(2, 3));
      const int64_t rows = q.size(2), columns = from.size(1);
      const auto whole = torch::TensorOptions(torch::kLong).device(q.device());
      const Tensor distance = torch::arange(rows, whole).unsqueeze(1) -
                              torch::arange(columns, whole).unsqueeze(0);
      if (relative_ && (way == first || streams.own.defined())) {
        const Tensor label =
            way == first
                ? (distance.clamp(-farthest_, farthest_) + farthest_).unsqueeze(0)
                : membership(streams, way).to(torch::kLong);
        const auto shape = score.sizes();
        const Tensor each = q.matmul(vectors_[way].transpose(1, 2)) +
                            biases_[way].unsqueeze(0).unsqueeze(2);
        score = score + each.gather(3, label.unsqueeze(1).expand(shape));
      }
      Tensor hide = torch::zeros({1, 1, rows, columns},
                                 torch::TensorOptions(torch::kBool).device(q.device()));
      if (way == kLongLong) hide = (distance.abs() > radius_).unsqueeze(0).unsqueeze(0);
      if (real.defined())
        hide = hide.logical_or(real.logical_not().unsqueeze(1).unsqueeze(1));
      scores.push_back(scale() * score);
      hidden.push_back(hide.expand({q.size(0), 1, rows, columns}));
      values.push_back(projected(from, v_[way]));
    }
    const Tensor hide = torch::cat(hidden, 3);
    return torch::cat(scores, 3)
        .masked_fill(hide, hidden_score(q.scalar_type()))
        .softmax(3)
        .masked_fill(hide, 0)
        .matmul(torch::cat(values, 2));
  }

  // Membership of tokens in the parts that begin at `begins` [G] or [B, G].
  static Tensor own_parts(const Tensor& begins, int64_t tokens, torch::Device device) {
    if (!begins.defined()) return {};
    const Tensor from = (begins.dim() == 1 ? begins.unsqueeze(0) : begins)
                            .to(device, torch::kLong)
                            .unsqueeze(1);  // [B|1, 1, G]
    const Tensor to = torch::cat(
        {from.slice(2, 1), torch::full_like(from.slice(2, 0, 1), tokens)}, 2);
    const Tensor at = torch::arange(tokens, from.options()).view({1, -1, 1});
    return (from <= at).logical_and(at < to);
  }

  template <class Attend>
  Tensor through(const Tensor& x, Pass& pass, Attend attend) {
    const int64_t examples = x.size(0), embedding = sizes_.embedding;
    Stream side = pass.side;
    if (!side.x.defined())
      side.x = spread(global_, {examples, global_.size(0), embedding});
    require(
        side.x.dim() == 3 && side.x.size(0) == examples && side.x.size(2) == embedding,
        "the second stream must be [B, G, E] = [", examples, ", G, ", embedding,
        "], got ", shape(side.x));
    const Streams streams{
        .x = x,
        .z = longspan::layer_norm(side.x, norm_weights_[0], norm_biases_[0]),
        .tokens = pass.mask.tokens,
        .global = side.tokens,
        .own = own_parts(side.positions, x.size(1), x.device())};
    const auto [of_long, of_global] = attend(streams);
    Tensor z = side.x + longspan::linear(joined_heads(of_global), global_out_);
    const Tensor inner = longspan::linear(
        longspan::layer_norm(z, norm_weights_[1], norm_biases_[1]), inner_in_);
    z = z + longspan::linear(activate(inner, inner_bias_, Activation::gelu), inner_out_,
                             inner_out_bias_);
    if (side.tokens.defined())
      z = z.masked_fill(side.tokens.logical_not().unsqueeze(2), 0);
    const Tensor out = longspan::linear(joined_heads(of_long), out_);
    pass.side.x = z;
    return out;
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    return through(x, pass,
                   [&](const Streams& streams) { return attended(streams, pass); });
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    return through(x, pass, [&](const Streams& streams) {
      return std::pair(defined(streams, kLongLong, kLongGlobal),
                       defined(streams, kGlobalGlobal, kGlobalLong));
    });
  }

  Sizes sizes_;
  int64_t radius_, farthest_;
  bool relative_;
  Tensor q_[4], k_[4], v_[4];      // by direction; shared ones are the same
  Tensor vectors_[4], biases_[4];  // [H, labels, d], [H, labels]
  Tensor out_, global_out_, global_;
  Tensor inner_in_, inner_bias_, inner_out_, inner_out_bias_;
  Tensor norm_weights_[2], norm_biases_[2];
};

}  // namespace

constinit const Mechanism catalogue::etc{
    .name = "etc",
    .summary =
        "a window, and a global stream that sees and is seen by all, with labels",
    .paper = "Ainslie et al. 2020, arXiv:2004.08483",
    .classes = "fixed patterns, memory",
    .time = {"(N*(radius + global) + global*global)*d", 1},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::never, .padding = true, .side = true, .dropout = true},
    .projections = Projections::none,
    .settings = kSettings,
    .test_settings = "{radius: 5, distance: 3, global: 3}",
    .make = Mechanism::Make<Mixer>(
        [](const Settings& settings, const Sizes& sizes,
           const std::shared_ptr<Shared>& shared) -> std::shared_ptr<Mixer> {
          return std::make_shared<Etc>(settings, sizes, *shared);
        }),
};

}  // namespace longspan
