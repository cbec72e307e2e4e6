#include "longspan/models/transformer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>
#include <tuple>
#include <utility>

#include <torch/nn/init.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/projected.h"
#include "longspan/attention/rotary.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/base/words.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/recompute.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kPositions[] = "sinusoidal|learned|rotary|alibi|t5|grid|none";

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

// What a layer must not see: the draws and records of other layers, and a second stream
// or a carry if it has none; the stream goes past it.
class InLayer {
 public:
  InLayer(Pass& pass, int64_t layer, const Mechanism& mechanism)
      : own_(pass, "layer" + std::to_string(layer)),
        pass_(pass),
        passes_by_(!mechanism.can.side) {
    pass.draw.enter(layer + 1);
    if (passes_by_) std::swap(passed_by_, pass.side);
    if (mechanism.can.carry == Carry::none) pass.carry = nullptr;
  }
  ~InLayer() {
    if (passes_by_) std::swap(passed_by_, pass_.side);
  }
  InLayer(const InLayer&) = delete;
  InLayer& operator=(const InLayer&) = delete;

 private:
  Inside own_;
  Pass& pass_;
  bool passes_by_;
  Stream passed_by_;
};

Tensor through(Block& block, int64_t layer, const Tensor& x, Pass& pass) {
  const InLayer entered(pass, layer, block.mechanism());
  return block.forward(x, pass);
}

// The mechanism of every layer.
std::vector<Chosen> mechanisms_of(const TransformerOptions& options) {
  const Chosen usual = Chosen::from(options.attention, "model.attention");
  require(options.layers == 1 || find_mechanism(usual.name).seam() != "stack",
          "model.layers must be 1 where model.attention is ", usual.name,
          ", a stack that says itself how many layers it has, got ", options.layers,
          "; model.by_layer puts one among other layers");
  std::vector<Chosen> chosen(static_cast<size_t>(options.layers), usual);
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

Value::Map settings_of(const TransformerOptions& options, const Chosen& chosen) {
  Value::Map settings = options.preset.empty()
                            ? Value::Map{}
                            : preset(find_mechanism(chosen.name), options.preset);
  for (const auto& [name, value] : chosen.settings)
    settings.insert_or_assign(name, value);
  return settings;
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

// How far tokens are from the first one of their segment, [B, N] both. Those of a
// segment stand together, also with those of the passes before, whose last `state`
// keeps.
Tensor places_in(const Tensor& segment, Record* state) {
  const Tensor at =
      torch::arange(segment.size(1), segment.options().dtype(torch::kLong));
  const Tensor begins = torch::constant_pad_nd(
      segment.slice(1, 1).ne(segment.slice(1, 0, -1)).to(torch::kLong), {1, 0});
  Tensor places = at - std::get<0>((at * begins).cummax(1));
  if (!state) return places;
  if (const Tensor last = state->get("segment"); last.defined()) {
    const Tensor goes_on = begins.cumsum(1).eq(0) & segment.slice(1, 0, 1).eq(last);
    places = places + goes_on * (state->get("place") + 1);
  }
  state->set("segment", segment.slice(1, -1));
  state->set("place", places.slice(1, -1));
  return places;
}

std::vector<int64_t> cutoffs_of(const Value& value) {
  std::vector<int64_t> cutoffs;
  const auto* const list = value.as<Value::List>();
  bool fits = list != nullptr;
  for (size_t i = 0; fits && i < list->size(); ++i) {
    const auto* const id = (*list)[i].as<int64_t>();
    fits = id != nullptr;
    if (fits) cutoffs.push_back(*id);
  }
  require(fits, "model.cutoffs must be a list of whole numbers, got ", value.text());
  return cutoffs;
}

}  // namespace

Fields fields(TransformerOptions& o) {
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
      {"memory_tokens",
       &o.memory_tokens,
       "learned tokens in front, behind the global ones, that all tokens after them "
       "see "
       "(Burtsev et al. 2020, arXiv:2006.11527)",
       {},
       0,
       1e6},
      {"recurrent_memory", &o.recurrent_memory,
       "causal models: the memory tokens are read at the front of a segment and "
       "written "
       "at its end, for the next one to read (Bulatov et al. 2022, arXiv:2207.06881)"},
      {"segment",
       &o.segment,
       "of recurrent_memory: tokens from one reading to the next; 0: whole sequences",
       {},
       0,
       1e9},
      {"attention", &o.attention,
       "the mechanism: a name of `longspan list`, or {name: .., setting: ..}"},
      {"by_layer", &o.by_layer,
       "other mechanisms in some layers: [{at: 0-5, attention: dense}, ..]"},
      {"preset", &o.preset,
       "published settings of the mechanism, as `longspan describe` names them"},
      {"norm", &o.norm, "where layer norms stand in a block", "pre|post|sandwich"},
      {"activation", &o.activation, "inside the feed-forward", "gelu|gelu_tanh|relu"},
      {"positions", &o.positions,
       "added to the embeddings (sinusoidal, learned), turning queries and keys "
       "(rotary), or a bias of scores, for mechanisms that take one: a slope by "
       "distance "
       "(alibi), learned by distance (t5) or by distances of rows and columns (grid)",
       kPositions},
      {"rotary_base",
       &o.rotary_base,
       "rotary: the slowest of a head's numbers turns by about 1 / this a token",
       {},
       1.000001},
      {"t5_buckets", &o.t5_buckets, "t5: how many numbers a head learns", {}, 2, 1e6},
      {"t5_reach",
       &o.t5_reach,
       "t5: the distance from which on all share one",
       {},
       1,
       1e9},
      {"grid_width", &o.grid_width, "grid: tokens in a row", {}, 0, 1e9},
      {"tied", &o.tied,
       "a language model's tokens are read and foretold by the same vectors"},
      {"cutoffs", &o.cutoffs,
       "[c1, c2, ..]: ids in the order of their frequency, those from each of these on "
       "with narrower vectors and foretold in two steps (Baevski and Auli 2019, "
       "arXiv:1809.10853; Grave et al. 2017, arXiv:1609.04309)"},
      {"divisor", &o.divisor, "of the width from one cutoff to the next", {}, 1, 1e5},
      {"pooling", &o.pooling,
       "what the classifier reads: a learned token at the front, the mean of all, or "
       "what a learned query finds in all by attention",
       "cls|mean|pma"},
      {"head", &o.head,
       "the classifier: two layers with ReLU, or one; of pairs of texts: three layers "
       "over both vectors, or two over both, their product and their difference",
       "mlp|linear|concatenation|interaction"},
      {"projection_bias", &o.projection_bias, "biases of the attention's projections"},
      {"rank",
       &o.rank,
       "of the linear maps of blocks, as products of two (Winata et al. 2020, "
       "arXiv:1910.13923); 0: full",
       {},
       0,
       1e6},
      {"norm_epsilon", &o.norm_epsilon, "added to the variance in layer norms", {}, 0},
      {"dropout", &o.dropout, "of embeddings and of what blocks add", {}, 0, 0.99},
      {"attention_dropout", &o.attention_dropout, "of attention weights", {}, 0, 0.99},
      {"recompute", &o.recompute,
       "compute activations again in the backward pass instead of keeping them"},
      {"reversible", &o.reversible,
       "layers that can be run backwards, between two residual streams (Kitaev et al. "
       "2020, arXiv:2001.04451): activations take as much memory for any number of "
       "them"},
  };
}

bool draws_keys(const TransformerOptions& options) {
  Sizes sizes{
      .heads = options.heads, .key_heads = options.key_heads, .layers = options.layers};
  for (const Chosen& chosen : mechanisms_of(options)) {
    if (abilities(find_mechanism(chosen.name), sizes, settings_of(options, chosen))
            .samples)
      return true;
    ++sizes.layer;
  }
  return false;
}

Transformer::Transformer(const TransformerOptions& options, const Inputs& inputs)
    : options_(options), inputs_(inputs) {
  const auto [ids, longest, cls, causal, predicts] = inputs;
  require(ids >= 1 && longest >= 1,
          "a Transformer needs ids and a longest sequence of 1 or ", "more, got ", ids,
          " and ", longest);
  require(!causal || options.global_tokens == 0, "model.global_tokens, ",
          options.global_tokens,
          ", see and are seen by all, which a causal model cannot have; must be 0");
  require(options.head_width > 0 || options.embedding % options.heads == 0,
          "model.embedding, ", options.embedding, ", is no multiple of model.heads, ",
          options.heads, "; give model.head_width");
  check_memory();
  front_ = std::max(options.global_tokens, int64_t{cls}) + options.memory_tokens;
  longest_ = longest + front_;
  if (options.recurrent_memory) {
    segment_ = options.segment > 0 ? std::min(options.segment, longest) : longest;
    longest_ = segment_ + 2 * options.memory_tokens;
  }
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
  vocabulary_ = register_module(
      "vocabulary", std::make_shared<Vocabulary>(
                        ids, width,
                        VocabularyOptions{.predicts = predicts,
                                          .tied = options.tied,
                                          .cutoffs = cutoffs_of(options.cutoffs),
                                          .divisor = options.divisor}));
  if (predicts && !causal)
    kinds_ = register_parameter("kinds", torch::randn({2, width}) * 0.02);
  if (cls) cls_ = register_parameter("cls", torch::zeros(width));
  const auto learned = [&](const char* name, int64_t count) {
    return count > 0 ? register_parameter(name, torch::randn({count, width}) * 0.02)
                     : Tensor();
  };
  global_ = learned("global", front_ - options.memory_tokens - int64_t{cls});
  memory_ = learned("memory", options.memory_tokens);
  if (options.positions == "learned")
    positions_ =
        register_parameter("positions", torch::randn({longest_, width}) * 0.02);
  const auto kinds_of_positions = split_choices(kPositions);
  require(std::ranges::count(kinds_of_positions, options.positions) > 0,
          "model.positions: no choice '", options.positions, "'",
          hint(options.positions, kinds_of_positions));
  require(options.positions != "rotary" || sizes_.head_width % 2 == 0,
          "model.positions: rotary needs heads of an even width, got ",
          sizes_.head_width);
  require(options.positions != "grid" || front_ == 0,
          "model.positions: grid needs a sequence that begins with its first row, but ",
          front_, " learned tokens stand in front; use model.pooling: mean and no ",
          "model.global_tokens");
  if (PositionBias::has_kind(options.positions))
    position_bias_ = register_module(
        "position_bias", std::make_shared<PositionBias>(
                             PositionBiasOptions{.kind = options.positions,
                                                 .heads = sizes_.heads,
                                                 .layers = options.layers,
                                                 .longest = longest_,
                                                 .causal = causal,
                                                 .buckets = options.t5_buckets,
                                                 .reach = options.t5_reach,
                                                 .width = options.grid_width}));

  shared_ = std::make_shared<Shared>();
  const auto chosen = mechanisms_of(options);
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const Chosen& mine = chosen[static_cast<size_t>(layer)];
    Sizes sizes = sizes_;
    sizes.layer = layer;
    layers_.push_back(
        make_layer(find_mechanism(mine.name), settings_of(options, mine), sizes));
  }
  if (options.recurrent_memory) carry_ = carry_ | Carry::per_example;
  if (!shared_->empty()) register_module("shared", shared_);
  if (options.norm != "post")
    norm_ = register_module("norm",
                            std::make_shared<LayerNorm>(width, options.norm_epsilon));
}

// Stacks say themselves what they refuse.
void Transformer::check_reversible(const Mechanism& row) const {
  require(options_.norm != "post",
          "model.reversible: a norm after the residual, model.norm: post, cannot be ",
          "run backwards; use pre or sandwich");
  require(!options_.recompute,
          "model.reversible: activations are computed again anyway, so ",
          "model.recompute must be false");
  require(!row.can.side && row.can.carry == Carry::none, "model.reversible: ", row.name,
          " hands on a second stream or a carry, which reversible layers do not");
  require(row.keeps.residual, "model.reversible: ", row.name,
          " has a residual of its own, which cannot be run backwards");
}

void Transformer::check_positions(const Mechanism& row, const Abilities& can) const {
  const std::string& kind = options_.positions;
  const bool turns = can_turn(row, can);
  const char* const others =
      turns ? "sinusoidal, learned, rotary or none" : "sinusoidal, learned or none";
  require(kind != "rotary" || turns, "model.positions: ", row.name,
          " has no queries and keys that rotary could turn; use ", others);
  require(!position_bias_ || can.bias, "model.positions: ", row.name,
          " takes no bias of scores, which ", kind, " is; use ", others);
}

void Transformer::tell_positions(Pass& pass, int64_t layer, const Tensor& x) {
  pass.rotary = options_.positions == "rotary" ? options_.rotary_base : 0;
  pass.bias = position_bias_ ? position_bias_->of(layer, x) : Bias{};
}

void Transformer::check_memory() const {
  const auto& [recurs, count, segment] =
      std::tie(options_.recurrent_memory, options_.memory_tokens, options_.segment);
  require(recurs || segment == 0, "model.segment, ", segment,
          ", is of model.recurrent_memory, which is false; must be 0");
  require(!recurs || count > 0,
          "model.recurrent_memory needs model.memory_tokens of 1 or more, got 0");
  require(!recurs || inputs_.causal,
          "model.recurrent_memory is for models that see only tokens before, but this ",
          "model sees all");
}

void Transformer::check_memory(const Mechanism& row) const {
  if (options_.memory_tokens == 0) return;
  require(row.seam() != "stack" && row.order.empty(), "model.memory_tokens: ", row.name,
          " has an order or a number of tokens of its own, so it must be 0");
  require(segment_ == 0 || row.can.carry == Carry::none,
          "model.recurrent_memory: ", row.name,
          " keeps something from batch to batch itself");
}

void Transformer::note_carry(const Mechanism& row, Carry carry) {
  require(carry == Carry::none || !options_.recompute, "model.recompute: ", row.name,
          " keeps something from batch to batch, which layers that are computed again ",
          "do not");
  carry_ = carry_ | carry;
}

Transformer::Layer Transformer::make_layer(const Mechanism& row,
                                           const Value::Map& settings,
                                           const Sizes& sizes) {
  const BlockOptions block{.norm = norm_called(options_.norm),
                           .activation = activation_called(options_.activation),
                           .dropout = options_.dropout,
                           .attention_dropout = options_.attention_dropout,
                           .norm_epsilon = options_.norm_epsilon,
                           .rank = options_.rank};
  const ProjectionOptions projections{.bias = options_.projection_bias,
                                      .rank = options_.rank};
  const std::string name = "layer" + std::to_string(sizes.layer);
  if (options_.reversible) check_reversible(row);
  const Abilities can = abilities(row, sizes, settings);
  require(inputs_.causal || can.causal != Causal::always, "model.attention: ", row.name,
          " has only a causal form, but this model sees all tokens");
  require(!inputs_.causal || can.causal != Causal::never, "model.attention: ", row.name,
          " has no causal form, but this model sees only tokens before");
  require(!inputs_.causal || row.order.empty(), "model.attention: ", row.name,
          " is causal in the order of ", row.order,
          ", not in that of the tokens, which a model that foretells them needs");
  check_positions(row, can);
  check_memory(row);
  note_carry(row, can.carry);
  if (row.seam() != "stack") {
    require(row.seam() != "feed_forward", "model.attention: ", row.name,
            " is a feed_forward, but a layer needs an attention, a mixer or a stack");
    require(!options_.recompute || !row.can.side, "model.recompute: ", row.name,
            " hands on a second stream, which layers that are computed again do not");
    require(row.keeps.norm || options_.norm == "pre", "model.norm: ", row.name,
            " is the whole of a block and has its own norms, so it must be pre, got ",
            options_.norm);
    return {.block = register_module(
                name, std::make_shared<Block>(
                          make_mixer(row, sizes, settings, shared_, projections), sizes,
                          block))};
  }
  const auto own = [&](const char* option, bool is_usual) {
    require(is_usual, "model.", option, ": ", row.name,
            " is a stack of layers of its own, which take no other than the standard ",
            "value");
  };
  const TransformerOptions usual;
  own("norm", options_.norm == usual.norm);
  own("norm_epsilon", options_.norm_epsilon == usual.norm_epsilon);
  own("projection_bias", options_.projection_bias == usual.projection_bias);
  own("rank", options_.rank == usual.rank);
  own("recompute", options_.recompute == usual.recompute);
  own("reversible", options_.reversible == usual.reversible);
  const auto stack = register_module(name, make<Stack>(row, sizes, settings, shared_));
  require(!cls_.defined() || !stack->makes_new_tokens(), "model.pooling: ", row.name,
          " leaves no token in front that cls could be read from; use mean");
  require(!inputs_.predicts || !stack->makes_new_tokens(),
          "model.attention: ", row.name, " leaves no tokens that could be foretold");
  int64_t blocks = 0;
  for (const auto& part : stack->modules()) {
    auto* const inner = dynamic_cast<Block*>(part.get());
    if (!inner) continue;
    inner->change(block.activation, block.dropout, block.attention_dropout);
    ++blocks;
  }
  require(blocks > 0 || block.attention_dropout == 0,
          "model.attention_dropout: ", row.name,
          " has no layers with these settings, so it must be 0");
  return {.stack = stack};
}

Tensor Transformer::positions(int64_t first, int64_t count, const Tensor& like) {
  const int64_t end = first + count;
  if (options_.positions == "learned") {
    require(end <= positions_.size(0), "positions are learned for ", positions_.size(0),
            " tokens, got ", end);
    return at_least_float(positions_.slice(0, first, end));
  }
  if (!positions_.defined() || positions_.size(0) < end ||
      positions_.options().device() != like.device() ||
      positions_.scalar_type() != like.scalar_type()) {
    // More than are asked for: decoding asks for one more each time.
    const auto rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(end)));
    positions_ = sinusoids(rows, sizes_.embedding).to(like.options());
  }
  return positions_.slice(0, first, end);
}

Tensor Transformer::embedded(const Tensor& ids, const Tensor& kinds) const {
  const Tensor x = vocabulary_->embedded(ids);
  if (kinds.defined()) {
    require(kinds_.defined(), "a model that has no pairs of texts got kinds of tokens");
    return x + torch::embedding(at_least_float(kinds_), kinds);
  }
  // A text by itself is a first one.
  return kinds_.defined() ? x + spread(at_least_float(kinds_)[0], x.sizes()) : x;
}

Tensor Transformer::with_front(const Tensor& x) const {
  std::vector<Tensor> all;
  for (const Tensor& learned : {cls_, global_, memory_})
    if (learned.defined())
      all.push_back(
          spread(at_least_float(learned),
                 {x.size(0), learned.dim() == 1 ? 1 : learned.size(0), x.size(2)}));
  if (all.empty()) return x;
  all.push_back(x);
  return torch::cat(all, 1);
}

Tensor Transformer::placed(const Tensor& x, int64_t first, Pass& pass) {
  // Rounded once, after the positions; and gradients of many tokens add up unrounded.
  Tensor y = x;
  if (options_.positions == "sinusoidal" || options_.positions == "learned") {
    const int64_t count = y.size(1);
    y = y + (pass.mask.segment.defined()
                 ? torch::embedding(positions(0, first + count, y),
                                    places_in(pass.mask.segment, pass.state))
                 : spread(positions(first, count, y), y.sizes()));
  }
  y = y.to(vocabulary_->type());
  pass.draw.enter(0);
  const Key key = pass.draw.key();
  return pass.training && options_.dropout > 0 ? dropout(y, options_.dropout, key) : y;
}

// Of all layers.
std::vector<Tensor> Transformer::shared_parameters() const {
  std::vector<Tensor> all = shared_->parameters();
  if (position_bias_)
    for (const Tensor& parameter : position_bias_->parameters())
      all.push_back(parameter);
  return all;
}

Tensor Transformer::recomputed(Block& block, int64_t layer, const Tensor& x,
                               Pass& pass) {
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
  for (const Tensor& parameter : shared_parameters()) used.push_back(parameter);
  const auto outs = recompute(
      [=, this, &block](const std::vector<Tensor>& in, bool again) {
        Pass inner = before;
        inner.replay = again;
        tell_positions(inner, layer, in[0]);
        std::vector<Tensor> made = {through(block, layer, in[0], inner)};
        names->clear();
        for (const auto& [name, loss] : inner.losses) {
          names->push_back(name);
          made.push_back(loss);
        }
        (void)choices;  // kept alive
        return made;
      },
      {x}, used);
  for (size_t i = 0; i < names->size(); ++i) pass.add_loss((*names)[i], outs[i + 1]);
  return outs[0];
}

// Both streams begin as x, and the mean of them is returned. They are float at least,
// because what was added to them is taken off again.
Tensor Transformer::reversed(const Tensor& x, Pass& pass) {
  require(!pass.side.x.defined() && !pass.context.x.defined(),
          "model.reversible: a second stream or a context is not carried through ",
          "reversible layers");
  struct Kept {  // of a layer
    Record choices;
    Draw draw;  // after its first step
  };
  const auto names = std::make_shared<std::vector<std::string>>();
  const auto type = x.scalar_type();
  Pass before = pass;
  before.losses.clear();
  std::vector<ReversibleStep> steps;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    Block& block = *layers_[static_cast<size_t>(layer)].block;
    const auto kept = std::make_shared<Kept>();
    auto used = block.parameters();
    for (const Tensor& parameter : shared_parameters()) used.push_back(parameter);
    const auto add_step = [&](bool first) {
      const auto f = [=, this, &block](const std::vector<Tensor>& in, bool again) {
        Pass inner = before;
        inner.replay = again;
        tell_positions(inner, layer, in[0]);
        inner.choices = &kept->choices;
        const InLayer entered(inner, layer, block.mechanism());
        if (!first) inner.draw = kept->draw;
        const Tensor from = in[0].to(type);
        std::vector<Tensor> made = {
            at_least_float(first ? block.mixed(from, inner) : block.fed(from, inner))};
        if (first) kept->draw = inner.draw;
        for (const auto& [name, loss] : inner.losses) {
          if (!again) names->push_back(name);
          made.push_back(loss);
        }
        return made;
      };
      steps.push_back({.f = f, .parameters = used});
    };
    add_step(true);
    if (block.mechanism().keeps.feed_forward) add_step(false);
  }
  const Tensor both = at_least_float(x);
  const auto outs = reversible(steps, both, both);
  for (size_t i = 0; i < names->size(); ++i) pass.add_loss((*names)[i], outs[i + 2]);
  return ((outs[0] + outs[1]) * 0.5).to(type);
}

Stream Transformer::forward(const Tensor& ids, const Tensor& mask, Pass& pass,
                            const Tensor& kinds) {
  require(ids.dim() == 2 && is_integer(ids), "ids must be [B, N] integer, got ",
          shape(ids), " ", ids.scalar_type());
  require(!mask.defined() ||
              (mask.sizes() == ids.sizes() && mask.scalar_type() == torch::kBool),
          "the mask must be bool and of the shape of ids, ", shape(ids), ", got ",
          shape(mask), " ", mask.scalar_type());
  const Tensor tokens =
      mask.defined() ? mask
                     : torch::ones(ids.sizes(), ids.options().dtype(torch::kBool));
  require(ids.size(1) <= inputs_.longest, "the model is made for sequences of ",
          inputs_.longest, " tokens, got ", ids.size(1));
  require(
      front_ == 0 || !pass.mask.segment.defined(),
      "model.memory_tokens, model.global_tokens: all see the tokens in front, so a ",
      "row must be one text, got mask.segment");
  pass.mask.causal = inputs_.causal;
  if (segment_ > 0) return in_segments(embedded(ids, kinds), tokens, pass);
  // In decoding what stands in front comes with the first tokens.
  const bool begins = !pass.state || pass.state->tokens == 0;
  const int64_t front = begins ? front_ : 0;
  Tensor x = embedded(ids, kinds);
  x = begins ? placed(with_front(x), 0, pass)
             : placed(x, front_ + pass.state->tokens, pass);
  const auto with_flags = [&](bool flag, const Tensor& others) {
    return torch::cat({others.new_full({others.size(0), front}, flag), others}, 1);
  };
  pass.mask.tokens = mask.defined() ? with_flags(true, tokens) : Tensor();
  if (options_.global_tokens > 0) {
    pass.mask.global = with_flags(true, torch::zeros_like(tokens));
    pass.mask.global.slice(1, front_ - options_.memory_tokens, front_).fill_(false);
  }
  Tensor kept = with_flags(false, tokens);
  if (cls_.defined()) kept.select(1, 0).fill_(true);
  x = through_layers(x, kept, pass);
  if (pass.state) pass.state->tokens += ids.size(1);
  if (memory_.defined() && begins) {
    const auto without_memory = [&](const Tensor& rows) {
      return torch::cat(
          {rows.slice(1, 0, front_ - memory_.size(0)), rows.slice(1, front_)}, 1);
    };
    x = without_memory(x);
    kept = without_memory(kept);
  }
  return {.x = x, .tokens = kept};
}

Tensor Transformer::through_layers(Tensor x, Tensor& kept, Pass& pass) {
  if (options_.reversible) x = reversed(x, pass);
  for (int64_t layer = 0; layer < options_.layers && !options_.reversible; ++layer) {
    const auto& [block, stack] = layers_[static_cast<size_t>(layer)];
    tell_positions(pass, layer, x);
    if (block) {
      const bool again = options_.recompute && torch::GradMode::is_enabled();
      x = again ? recomputed(*block, layer, x, pass) : through(*block, layer, x, pass);
      continue;
    }
    const InLayer entered(pass, layer, stack->mechanism());
    pass.dropout = 0;  // the blocks inside say theirs
    const Stream out = stack->forward(x, pass);
    x = out.x;
    kept = pass.mask.tokens = out.tokens.defined()
                                  ? out.tokens
                                  : torch::ones({x.size(0), x.size(1)}, kept.options());
  }
  return norm_ ? norm_->forward(x) : x;
}

// A segment is a row of its own: the memory to read, the tokens, the memory to write,
// which as it comes out is the one that the next segment reads. So tokens see those
// before them in the segment and, through the memory, all segments before; gradients go
// the same way, up to the beginning of the pass.
Stream Transformer::in_segments(const Tensor& x, const Tensor& tokens, Pass& pass) {
  Record* const state = pass.state;
  const int64_t examples = x.size(0), count = x.size(1), slots = memory_.size(0);
  const auto type = vocabulary_->type();
  Tensor memory, heard;  // heard: [B] bool, had tokens in this segment
  if (state && state->tokens > 0) {
    memory = state->get("memory");
    heard = state->get("heard");
  } else if (pass.carry && pass.carry->get("memory").defined()) {
    memory = pass.carry->get("memory").to(x.device(), type);
    require(memory.size(0) == examples, "the memory is carried from a batch of ",
            memory.size(0), " examples to one of ", examples,
            "; batches that follow each other have the same examples");
  } else {
    memory = spread(memory_, {examples, slots, x.size(2)});
  }
  pass.draw.enter(options_.layers + 1);
  const Key key = pass.draw.key();
  std::vector<Tensor> outs;
  for (int64_t at = 0; at < count;) {
    const int64_t begun = state ? state->tokens % segment_ : 0,
                  length = std::min(count - at, segment_ - begun),
                  // A segment that the sequence does not fill is filled with padding,
                  // so that the places of the memory are always the same.
        rows = state ? length : segment_;
    const bool reads = begun == 0, writes = !state || begun + length == segment_;
    Pass inner = pass;
    inner.carry = nullptr;
    inner.losses.clear();
    if (pass.training)
      inner.draw = Draw(mix(key, static_cast<uint64_t>(at)).bits, pass.draw.step());
    const auto filled = [&](const Tensor& all) {
      const Tensor some = all.slice(1, at, at + length);
      std::vector<int64_t> pads(static_cast<size_t>(2 * (all.dim() - 1)), 0);
      pads.back() = rows - length;
      return rows > length ? torch::constant_pad_nd(some, pads) : some;
    };
    const auto around = [&](const Tensor& before, const Tensor& middle) {
      std::vector<Tensor> all = {middle};
      if (reads) all.insert(all.begin(), before);
      if (writes) all.push_back(before);
      return torch::cat(all, 1);
    };
    if (reads) {
      heard = torch::zeros({examples}, tokens.options());
      for (int64_t layer = 0; state && layer < options_.layers; ++layer)
        state->part("layer" + std::to_string(layer)) = {};
    }
    heard = heard.logical_or(tokens.slice(1, at, at + length).any(1));
    Tensor all = around(at_least_float(memory), filled(x));
    all = placed(all, reads ? 0 : slots + begun, inner);
    Tensor real =
        around(torch::ones({examples, slots}, tokens.options()), filled(tokens));
    inner.mask.tokens = real;
    all = through_layers(all, real, inner);
    for (const auto& [name, loss] : inner.losses) pass.add_loss(name, loss);
    const int64_t first = reads ? slots : 0;
    outs.push_back(all.slice(1, first, first + length));
    if (writes)
      memory = torch::where(heard.view({-1, 1, 1}), all.slice(1, first + rows), memory);
    at += length;
    if (!state) continue;
    state->tokens += length;
    state->set("memory", memory);
    state->set("heard", heard);
  }
  if (pass.carry && !state) pass.carry->set("memory", memory.detach());
  return {.x = outs.empty() ? x.to(type) : torch::cat(outs, 1), .tokens = tokens};
}

}  // namespace longspan
