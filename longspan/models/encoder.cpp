#include "longspan/models/encoder.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include <torch/nn/init.h>

#include "longspan/attention/linear.h"
#include "longspan/attention/projected.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/base/words.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/total.h"
#include "longspan/models/recompute.h"

namespace longspan {
namespace {

using torch::Tensor;

Norm norm_called(const std::string& name) {
  if (name == "pre") return Norm::pre;
  if (name == "post") return Norm::post;
  require(name == "sandwich", "model.norm: no choice '", name, "'",
          hint(name, {"pre", "post", "sandwich"}));
  return Norm::sandwich;
}

Activation activation_called(const std::string& name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  require(name == "relu", "model.activation: no choice '", name, "'",
          hint(name, {"gelu", "gelu_tanh", "relu"}));
  return Activation::relu;
}

// "3" or "0-5" -> first and last layer.
std::pair<int64_t, int64_t> layers_at(const Value& at, int64_t layers) {
  int64_t first = -1, last = -1;
  if (const auto* one = at.as<int64_t>()) first = last = *one;
  if (const auto* range = at.as<std::string>()) {
    char dash = 0;
    std::istringstream text(*range);
    if (!(text >> first >> dash >> last) || dash != '-' || !text.eof()) first = -1;
  }
  require(first >= 0 && first <= last && last < layers,
          "model.by_layer: at must be a layer or a range such as 0-5 of the layers 0-",
          layers - 1, ", got ", at.text());
  return {first, last};
}

// The mechanism of every layer.
std::vector<Chosen> mechanisms_of(const EncoderOptions& options) {
  std::vector<Chosen> chosen(static_cast<size_t>(options.layers),
                             Chosen::from(options.attention, "model.attention"));
  const auto* by_layer = options.by_layer.as<Value::List>();
  require(by_layer != nullptr,
          "model.by_layer must be a list of {at: .., attention: ..}", ", got ",
          options.by_layer.text());
  for (const Value& entry : *by_layer) {
    const auto* map = entry.as<Value::Map>();
    require(
        map && map->size() == 2 && map->contains("at") && map->contains("attention"),
        "model.by_layer must be a list of {at: .., attention: ..}, got ", entry.text());
    const auto [first, last] = layers_at(map->at("at"), options.layers);
    for (int64_t layer = first; layer <= last; ++layer)
      chosen[static_cast<size_t>(layer)] =
          Chosen::from(map->at("attention"), "model.by_layer");
  }
  return chosen;
}

// Columns 2t and 2t + 1 are sine and cosine of position / 10000^(2t/width). Vaswani et
// al. 2017, arXiv:1706.03762.
Tensor sinusoids(int64_t count, int64_t width) {
  Tensor table = torch::empty({count, width}, torch::kDouble);
  auto* const values = table.data_ptr<double>();
  for (int64_t position = 0; position < count; ++position) {
    for (int64_t column = 0; column < width; ++column) {
      const double angle = static_cast<double>(position) *
                           std::exp(-static_cast<double>(column / 2 * 2) *
                                    std::log(10000.0) / static_cast<double>(width));
      values[position * width + column] =
          column % 2 ? std::cos(angle) : std::sin(angle);
    }
  }
  return table;
}

}  // namespace

Fields fields(EncoderOptions& o) {
  return {
      {"layers", &o.layers, "how many blocks", {}, 1, 10000},
      {"embedding", &o.embedding, "width of the model, E", {}, 1, 1e5},
      {"heads", &o.heads, "heads of the queries, H", {}, 1, 1e4},
      {"key_heads", &o.key_heads, "heads of keys and values; 0: as heads", {}, 0, 1e4},
      {"head_width",
       &o.head_width,
       "width of a head, d, free of the embedding; 0: embedding / heads",
       {},
       0,
       1e5},
      {"inner",
       &o.inner,
       "width inside the feed-forward and the head; 0: 4 x embedding",
       {},
       0,
       1e6},
      {"longest", &o.longest, "longest sequence in tokens; 0: the task's", {}, 0, 1e9},
      {"global_tokens",
       &o.global_tokens,
       "learned tokens in front that see and are seen by all, the classifier's first; "
       "for mechanisms with global tokens",
       {},
       0,
       1e6},
      {"attention", &o.attention,
       "the mechanism: a name of `longspan list`, or {name: .., setting: ..}"},
      {"by_layer", &o.by_layer,
       "other mechanisms in some layers: [{at: 0-5, attention: dense}, ..]"},
      {"preset", &o.preset,
       "published settings of the mechanism, as `longspan describe` names them"},
      {"norm", &o.norm, "where layer norms stand in a block", "pre|post|sandwich"},
      {"activation", &o.activation, "inside the feed-forward", "gelu|gelu_tanh|relu"},
      {"positions", &o.positions, "added to the embeddings", "sinusoidal|learned|none"},
      {"pooling", &o.pooling,
       "what the classifier reads: a learned token at the front, or the mean of all",
       "cls|mean"},
      {"head", &o.head, "the classifier: two layers with ReLU, or one", "mlp|linear"},
      {"projection_bias", &o.projection_bias, "biases of the attention's projections"},
      {"norm_epsilon", &o.norm_epsilon, "added to the variance in layer norms", {}, 0},
      {"dropout", &o.dropout, "of embeddings and of what blocks add", {}, 0, 0.99},
      {"attention_dropout", &o.attention_dropout, "of attention weights", {}, 0, 0.99},
      {"recompute", &o.recompute,
       "compute activations again in the backward pass instead of keeping them"},
  };
}

Encoder::Encoder(const EncoderOptions& options, int64_t ids, int64_t longest, bool cls)
    : options_(options) {
  require(ids >= 1 && longest >= 1,
          "an encoder needs ids and a longest sequence of 1 or ", "more, got ", ids,
          " and ", longest);
  require(options.head_width > 0 || options.embedding % options.heads == 0,
          "model.embedding, ", options.embedding, ", is no multiple of model.heads, ",
          options.heads, "; give model.head_width");
  front_ = std::max(options.global_tokens, int64_t{cls});
  longest_ = longest + front_;
  sizes_ =
      Sizes{.embedding = options.embedding,
            .heads = options.heads,
            .key_heads = options.key_heads,
            .head_width = options.head_width > 0 ? options.head_width
                                                 : options.embedding / options.heads,
            .inner = options.inner,
            .longest = longest_,
            .layers = options.layers}
          .completed();
  const int64_t width = sizes_.embedding;
  embedding_ = register_parameter("embedding", torch::randn({ids, width}));
  if (cls) cls_ = register_parameter("cls", torch::zeros(width));
  if (front_ > int64_t{cls})
    global_ = register_parameter("global",
                                 torch::randn({front_ - int64_t{cls}, width}) * 0.02);
  if (options.positions == "learned")
    positions_ =
        register_parameter("positions", torch::randn({longest_, width}) * 0.02);

  const BlockOptions block{.norm = norm_called(options.norm),
                           .activation = activation_called(options.activation),
                           .dropout = options.dropout,
                           .attention_dropout = options.attention_dropout,
                           .norm_epsilon = options.norm_epsilon};
  shared_ = std::make_shared<Shared>();
  const auto chosen = mechanisms_of(options);
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const Chosen& mine = chosen[static_cast<size_t>(layer)];
    const Mechanism& row = find_mechanism(mine.name);
    require(!std::holds_alternative<Mechanism::Make<Stack>>(row.make) &&
                !std::holds_alternative<Mechanism::Make<FeedForward>>(row.make),
            "model.attention: ", row.name, " is a ", row.seam(),
            ", but a layer needs an attention or a mixer");
    require(!options.recompute || !row.can.side, "model.recompute: ", row.name,
            " hands on a second stream, which layers that are computed again do not");
    Value::Map settings =
        options.preset.empty() ? Value::Map{} : preset(row, options.preset);
    for (const auto& [name, value] : mine.settings)
      settings.insert_or_assign(name, value);
    Sizes sizes = sizes_;
    sizes.layer = layer;
    blocks_.push_back(register_module(
        "layer" + std::to_string(layer),
        std::make_shared<Block>(make_mixer(row, sizes, settings, shared_,
                                           {.bias = options.projection_bias}),
                                sizes, block)));
  }
  if (!shared_->empty()) register_module("shared", shared_);
  if (block.norm != Norm::post)
    norm_ = register_module("norm",
                            std::make_shared<LayerNorm>(width, options.norm_epsilon));
}

Tensor Encoder::positions(int64_t count, const Tensor& like) {
  if (options_.positions == "learned")
    return at_least_float(positions_.slice(0, 0, count));
  if (!positions_.defined() || positions_.size(0) < count ||
      positions_.options().device() != like.device() ||
      positions_.scalar_type() != like.scalar_type())
    positions_ = sinusoids(count, sizes_.embedding).to(like.options());
  return positions_.slice(0, 0, count);
}

Tensor Encoder::embedded(const Tensor& ids, Pass& pass) {
  // Rounded once, after the positions; and gradients of many tokens add up unrounded.
  Tensor x = torch::embedding(at_least_float(embedding_), ids);
  std::vector<Tensor> all;
  const auto put_in_front = [&](const Tensor& learned, int64_t count) {
    if (learned.defined())
      all.push_back(spread(at_least_float(learned), {x.size(0), count, x.size(2)}));
  };
  put_in_front(cls_, 1);
  put_in_front(global_, front_ - int64_t{cls_.defined()});
  all.push_back(x);
  if (front_ > 0) x = torch::cat(all, 1);
  if (options_.positions != "none") x = x + spread(positions(x.size(1), x), x.sizes());
  x = x.to(embedding_.scalar_type());
  pass.draw.enter(0);
  const Key key = pass.draw.key();
  return pass.training && options_.dropout > 0 ? dropout(x, options_.dropout, key) : x;
}

Stream Encoder::forward(const Tensor& ids, const Tensor& tokens, Pass& pass) {
  require(ids.dim() == 2 && is_integer(ids) && tokens.sizes() == ids.sizes() &&
              tokens.scalar_type() == torch::kBool,
          "encoder: ids and tokens must be [B, N] integer and bool, got ", shape(ids),
          " ", ids.scalar_type(), " and ", shape(tokens), " ", tokens.scalar_type());
  require(ids.size(1) + front_ <= longest_, "encoder: made for sequences of ",
          longest_ - front_, " tokens, got ", ids.size(1));
  Tensor x = embedded(ids, pass);
  const auto with_front = [&](bool front, const Tensor& others) {
    return torch::cat({others.new_full({others.size(0), front_}, front), others}, 1);
  };
  pass.mask.tokens = with_front(true, tokens);
  if (options_.global_tokens > 0)
    pass.mask.global = with_front(true, torch::zeros_like(tokens));
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Block& block = *blocks_[layer];
    const auto through = [layer, &block](const Tensor& in, Pass& inner) {
      inner.draw.enter(static_cast<int64_t>(layer) + 1);
      Stream passed_by;  // a second stream goes past layers that have none
      if (!block.mechanism().can.side) std::swap(passed_by, inner.side);
      Tensor out = block.forward(in, inner);
      if (!block.mechanism().can.side) std::swap(passed_by, inner.side);
      return out;
    };
    if (!options_.recompute || !torch::GradMode::is_enabled()) {
      x = through(x, pass);
      continue;
    }
    require(
        !pass.side.x.defined() && !pass.context.x.defined(),
        "model.recompute: a second stream or a context is not carried through layers ",
        "that are computed again");
    const auto choices = std::make_shared<Record>();
    const auto names = std::make_shared<std::vector<std::string>>();
    Pass before = pass;
    before.losses.clear();
    before.choices = choices.get();
    auto used = block.parameters();
    for (const Tensor& parameter : shared_->parameters()) used.push_back(parameter);
    const auto outs = recompute(
        [=](const std::vector<Tensor>& in, bool again) {
          Pass inner = before;
          inner.replay = again;
          std::vector<Tensor> made = {through(in[0], inner)};
          names->clear();
          for (const auto& [name, loss] : inner.losses) {
            names->push_back(name);
            made.push_back(loss);
          }
          (void)choices;  // kept alive
          return made;
        },
        {x}, used);
    x = outs[0];
    for (size_t i = 0; i < names->size(); ++i) pass.add_loss((*names)[i], outs[i + 1]);
  }
  Tensor kept = with_front(false, tokens);
  if (cls_.defined()) kept.select(1, 0).fill_(true);
  return {.x = norm_ ? norm_->forward(x) : x, .tokens = kept};
}

}  // namespace longspan
