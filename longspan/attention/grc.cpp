// Attention beside a gated recurrent cache: some slots that are rewritten from batch to
// batch and read by all tokens. Zhang et al. 2023, arXiv:2312.12742.
//
//   X    = the first channels of the input, resized to the slots (nearest real token)
//   U, R = sigmoid(W_u [X, C]), sigmoid(W_r [X, C])
//   C'   = (1 - U) C + U W_c [X, R C], the mean over the batch
//   head = s memory + (1 - s) self,  s = sigmoid(lambda)
//   memory = softmax(Q K^T / width^1/2) V,  Q of the tokens, K and V of C'
//
// Not causal: a batch reads the C' it wrote itself. Causal: slots know tokens of the
// whole sequence, so a batch reads the C' of the batch before; it is computed in this
// pass, out of X and C as they were carried, so that gates learn. In evaluation the
// cache is read as it is, and not written. It and what is added to it are float at
// least: most updates are less than bfloat16 can tell.
//
// The authors' published module differs: preset `released`.

#include "longspan/attention/grc.h"

#include <algorithm>
#include <cmath>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/projected.h"
#include "longspan/attention/real_first.h"
#include "longspan/attention/rotary.h"
#include "longspan/attention/wrapped.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/block_attention.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/recompute.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr std::string_view kCache = "cache#mean";    // [slots, width]
constexpr std::string_view kTokens = "tokens#rows";  // X of each example
constexpr std::string_view kHeard = "heard#rows";    // [B] bool: had real tokens

constexpr Setting kSettings[] = {
    {.name = "attention",
     .kind = Kind::mechanism,
     .standard = "dense",
     .help = "what the tokens themselves are mixed by"},
    {.name = "ratio",
     .kind = Kind::number,
     .standard = "0.5",
     .help = "width of the cache, as a part of the embedding, 1 at most",
     .least = 0},
    {.name = "slots",
     .standard = "0",
     .help = "of the cache; 0: as many as the longest sequence has tokens",
     .least = 0},
    {.name = "lambda",
     .kind = Kind::number,
     .standard = "0",
     .help = "at first; its sigmoid is the memory's part of a head"},
    {.name = "source",
     .kind = Kind::word,
     .standard = "input",
     .help =
         "the cache learns from the first channels of the layer's input, or of what "
         "the attention puts out",
     .choices = "input|output"},
    {.name = "candidate",
     .kind = Kind::word,
     .standard = "linear",
     .help = "what may come into the cache: as W_c gives it, or through GELU and a "
             "layer norm",
     .choices = "linear|norm_gelu"},
    {.name = "gate_bias",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "the maps of the gates and of the candidate have biases"},
    {.name = "mixing",
     .kind = Kind::word,
     .standard = "heads",
     .help = "memory and tokens meet in the heads, before one output projection; or in "
             "as many groups of channels, after a projection for each, the memory's "
             "being narrower and filled up with zeros",
     .choices = "heads|outputs"},
    {.name = "own",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "an example reads what it wrote itself, not the mean over the batch; also "
             "in evaluation; neither causal nor with segments"},
};

constexpr Preset kPresets[] = {
    {"released",
     "{lambda: -1, source: output, candidate: norm_gelu, gate_bias: true, mixing: "
     "outputs, own: true}"}};

// The mechanism inside.
Wrapped inner_of(const Settings& settings, const Sizes& sizes) {
  const Chosen chosen = settings.mechanism("attention");
  return {&find_mechanism(chosen.name), chosen.settings, sizes};
}

// Rows `index` [B, n] of x [B, m, w]. As gradients they are added in a fixed order on
// both devices.
Tensor rows_at(const Tensor& x, const Tensor& index) {
  if (!x.is_cuda()) return x.gather(1, index.unsqueeze(2).expand({-1, -1, x.size(2)}));
  return x.index({torch::arange(x.size(0), index.options()).unsqueeze(1), index});
}

class Grc final : public Mixer {
 public:
  Grc(const Settings& settings, const Sizes& sizes,
      const std::shared_ptr<Shared>& shared)
      : heads_(sizes.heads),
        embedding_(sizes.embedding),
        slots_(settings.integer("slots") > 0 ? settings.integer("slots")
                                             : sizes.longest),
        from_output_(settings.word("source") == "output"),
        in_heads_(settings.word("mixing") == "heads"),
        own_(settings.flag("own")) {
    const double ratio = settings.number("ratio");
    width_ = static_cast<int64_t>(ratio * static_cast<double>(embedding_));
    require(ratio <= 1 && width_ >= 1, "ratio must leave 1 to ", embedding_,
            " channels of the embedding, got ", ratio);
    const Wrapped inner = inner_of(settings, sizes);
    const Mechanism& row = *inner.row;
    check_part(row);
    require(!in_heads_ || row.seam() == "attention", row.name,
            " is a mixer, whose heads are not to be had; give mixing: outputs");
    inner_ = register_module("inner", make_mixer(row, sizes, inner.settings, shared));
    projected_ = dynamic_cast<Projected*>(inner_.get());

    const int64_t key_width = std::max<int64_t>(1, width_ / heads_);
    const int64_t value_width = in_heads_ ? sizes.value_width : key_width;
    require(in_heads_ || (embedding_ % heads_ == 0 && width_ % heads_ == 0),
            "mixing: outputs is in as many groups of channels as there are heads, ",
            heads_, ", but the embedding has ", embedding_, " and the cache ", width_);
    require(!from_output_ || !in_heads_ || heads_ * value_width >= width_,
            "source: output needs heads of ", width_, " channels together, got ",
            heads_ * value_width);
    const bool bias = settings.flag("gate_bias");
    const auto gate = [&](const char* name) {
      return make_linear(*this, name, width_, 2 * width_, bias);
    };
    update_ = gate("update");
    reset_ = gate("reset");
    candidate_ = gate("candidate");
    if (settings.word("candidate") == "norm_gelu") {
      norm_weight_ = register_parameter("norm_weight", torch::ones(width_));
      norm_bias_ = register_parameter("norm_bias", torch::zeros(width_));
    }
    const auto map = [&](const char* name, int64_t out) {
      return make_linear(*this, name, out, width_, /*has_bias=*/false);
    };
    q_ = map("memory_q", heads_ * key_width);
    k_ = map("memory_k", heads_ * key_width);
    v_ = map("memory_v", heads_ * value_width);
    if (!in_heads_) out_ = map("memory_out", width_);
    lambda_ =
        register_parameter("lambda", torch::full({heads_}, settings.number("lambda")));
  }

  // What its attention can, and what the cache lets it.
  static Abilities abilities(const Settings& settings, const Sizes& sizes) {
    const Wrapped inner = inner_of(settings, sizes);
    Abilities can = longspan::abilities(*inner.row, sizes, inner.settings);
    can.rotary = can_turn(*inner.row, can);
    can.cross = can.causal_cross = false;
    can.carry = can.carry | Carry::per_model;
    return can;
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    return longspan::state_size({inner_of(settings, sizes)}, tokens);
  }

  Tensor memory_share() const { return lambda_.detach().sigmoid(); }
  bool is_in_heads() const { return in_heads_; }

 private:
  // The two ways to the same numbers.
  struct Fast {};
  struct Defined {};

  Tensor run(const Tensor& x, Pass& pass) override { return mixed(x, pass, Fast()); }
  Tensor define(const Tensor& x, Pass& pass) override {
    return mixed(x, pass, Defined());
  }

  template <class Form>
  Tensor mixed(const Tensor& x, Pass& pass, Form form) {
    require(x.size(2) == embedding_, "x must be as wide as the embedding, ", embedding_,
            ", got ", shape(x));
    require(!own_ || !pass.mask.causal,
            "with own: true, tokens would read from a cache that knows those after "
            "them; a causal form needs own: false");
    require(!own_ || !pass.mask.segment.defined(),
            "with own: true, tokens would read from a cache that knows other segments; "
            "segments need own: false");
    const Tensor self = of_tokens(x, pass, form);  // [B, H, N, dv] or [B, N, E]
    const Tensor source = narrow(!from_output_ ? x
                                 : in_heads_   ? joined_heads(self)
                                               : self);
    const Tensor memory = read(narrow(x), cache_for(source, pass, form), pass, form);
    if (pass.state) pass.state->tokens += x.size(1);
    const Tensor share = at_least_float(lambda_).sigmoid().to(x.scalar_type());
    const auto mix = [&](const Tensor& mine, const Tensor& other, const Tensor& part) {
      return mine + spread(part, mine.sizes()) * (other - mine);
    };
    if (in_heads_) {
      const Tensor heads = mix(self, memory, share.view({1, -1, 1, 1}));
      return projected_->projected_back(heads);
    }
    const int64_t groups = heads_, wide = embedding_ / groups, filled = width_ / groups;
    const Tensor other = torch::constant_pad_nd(
        out_(joined_heads(memory)).view({x.size(0), x.size(1), groups, filled}),
        {0, wide - filled});
    return mix(self.view(other.sizes()), other, share.view({1, 1, -1, 1})).flatten(2);
  }

  // The first channels.
  Tensor narrow(const Tensor& x) const { return x.slice(2, 0, width_); }

  template <class Form>
  Tensor of_tokens(const Tensor& x, Pass& pass, Form) {
    constexpr bool fast = std::is_same_v<Form, Fast>;
    const Inside inner(pass, "inner");
    if (inner_->can().carry == Carry::none) pass.carry = nullptr;
    if (!in_heads_) return fast ? inner_->forward(x, pass) : inner_->reference(x, pass);
    return fast ? projected_->attended(x, pass)
                : projected_->attended_reference(x, pass);
  }

  // What is read in this pass, [B|1, slots, width]. In training the carry is written.
  template <class Form>
  Tensor cache_for(const Tensor& source, const Pass& pass, Form form) const {
    const auto carried = [&](std::string_view name) {
      const Tensor kept = pass.carry ? pass.carry->get(name) : Tensor();
      return kept.defined() ? kept.to(source.device()) : kept;
    };
    Tensor cache = carried(kCache);
    const int64_t slots = slots_ > 0        ? slots_
                          : cache.defined() ? cache.size(0)
                                            : source.size(1);
    require(!cache.defined() || cache.sizes() == at::IntArrayRef({slots, width_}),
            "the carry must be a cache [", slots, ", ", width_, "], got ",
            shape(cache));
    cache = cache.defined()
                ? at_least_float(cache).unsqueeze(0)
                : torch::zeros({1, slots, width_},
                               at_least_float(source).options().requires_grad(false));
    if (source.size(0) == 0 || source.size(1) == 0) return cache;
    const Tensor real =
        pass.mask.tokens.defined() ? pass.mask.tokens.to(source.device()) : Tensor();
    const bool writes = pass.training;
    const auto write = [&](std::string_view name, const Tensor& tensor) {
      if (pass.carry) pass.carry->set(name, tensor.detach().clone());
    };
    const Tensor heard = real.defined() ? real.any(1) : Tensor();
    if (pass.mask.causal) {
      if (!writes) return cache;
      if (const Tensor before = carried(kTokens); before.defined())
        cache = renewed_mean(before.to(source.scalar_type()), cache, carried(kHeard),
                             source.size(0), form);
      write(kCache, cache.squeeze(0));
      write(kTokens, resized(source.detach(), real, slots, form));
      write(kHeard,
            heard.defined()
                ? heard
                : torch::ones({source.size(0)}, source.options().dtype(torch::kBool)));
      return cache;
    }
    if (!writes && !own_) return cache;
    const Tensor own = renewed(resized(source, real, slots, form), cache, form);
    const Tensor all = mean(own, heard, cache, form);
    if (writes) write(kCache, all.squeeze(0));
    return own_ ? own : all;
  }

  // source [B, N, width] to [B, slots, width]: the real tokens, stretched or thinned
  // out. An example without any has zeros.
  static Tensor resized(const Tensor& source, const Tensor& real, int64_t slots, Fast) {
    const int64_t tokens = source.size(1);
    const auto whole = source.options().dtype(torch::kLong).requires_grad(false);
    if (!real.defined() && slots == tokens) return source;
    const Tensor slot = torch::arange(slots, whole);
    if (!real.defined())
      return rows_at(source, torch::div(slot * tokens, slots, "floor")
                                 .unsqueeze(0)
                                 .expand({source.size(0), -1}));
    const RealFirst first(real);
    const Tensor number =
        torch::div(slot * real.sum(1, /*keepdim=*/true), slots, "floor");
    const Tensor index = first.place().argsort(int64_t{1}).gather(1, number);
    return rows_at(source, index)
        .masked_fill(real.any(1).logical_not().view({-1, 1, 1}), 0);
  }

  static Tensor resized(const Tensor& source, const Tensor& real, int64_t slots,
                        Defined) {
    std::vector<Tensor> all;
    for (int64_t b = 0; b < source.size(0); ++b) {
      const Tensor tokens =
          real.defined() ? source[b].index({real[b]}) : source[b];  // [n, width]
      if (tokens.size(0) == 0) {
        all.push_back(torch::zeros({slots, source.size(2)}, source.options()));
        continue;
      }
      std::vector<Tensor> rows;
      for (int64_t slot = 0; slot < slots; ++slot)
        rows.push_back(tokens[slot * tokens.size(0) / slots]);
      all.push_back(torch::stack(rows));
    }
    return torch::stack(all);
  }

  // The mean [1, slots, width] over the examples where `heard` [B], all if undefined;
  // `before` where that is none.
  static Tensor mean(const Tensor& caches, const Tensor& heard, const Tensor& before,
                     Fast) {
    const int64_t slots = caches.size(1), width = caches.size(2);
    if (!heard.defined())
      return caches.size(0) == 1 ? caches
                                 : longspan::sum_to(caches, {1, slots, width}) /
                                       static_cast<double>(caches.size(0));
    const Tensor all = longspan::sum_to(caches * shares_of(heard, caches.scalar_type()),
                                        {1, slots, width});
    return torch::where(heard.any(), all, before);
  }

  static Tensor mean(const Tensor& caches, const Tensor& heard, const Tensor& before,
                     Defined) {
    if (!heard.defined()) return caches.mean(0, /*keepdim=*/true);
    return heard.any().item<bool>() ? caches.index({heard}).mean(0, true) : before;
  }

  // What each example is of the mean, [B, 1, 1].
  static Tensor shares_of(const Tensor& heard, torch::Dtype type) {
    const Tensor counts = heard.to(torch::kDouble);
    return (counts / counts.sum().clamp_min(1)).to(type).view({-1, 1, 1});
  }

  // mean(renewed(tokens, cache), heard, cache). More examples than `at_once`, as where
  // those of a step come in several passes, are taken so many at a time, and again for
  // the gradients, so that they take no more memory than one pass.
  Tensor renewed_mean(const Tensor& tokens, const Tensor& cache, const Tensor& heard,
                      int64_t at_once, Fast form) const {
    if (tokens.size(0) <= at_once)
      return mean(renewed(tokens, cache, form), heard, cache, form);
    std::vector<Tensor> parameters;
    for (const Linear& map : {update_, reset_, candidate_})
      for (const Tensor& parameter : {map.weight, map.bias})
        if (parameter.defined()) parameters.push_back(parameter);
    if (norm_weight_.defined())
      parameters.insert(parameters.end(), {norm_weight_, norm_bias_});
    const Tensor shares = shares_of(heard, cache.scalar_type());
    Tensor all;
    for (int64_t first = 0; first < tokens.size(0); first += at_once) {
      const auto part = recompute(
          [=, this](const std::vector<Tensor>& in, bool) {
            const Tensor caches =
                renewed(in[0], in[1], form) * shares.slice(0, first, first + at_once);
            return std::vector<Tensor>{longspan::sum_to(caches, cache.sizes())};
          },
          {tokens.slice(0, first, first + at_once), cache}, parameters);
      all = all.defined() ? all + part[0] : part[0];
    }
    return torch::where(heard.any(), all, cache);
  }

  Tensor renewed_mean(const Tensor& tokens, const Tensor& cache, const Tensor& heard,
                      int64_t, Defined form) const {
    return mean(renewed(tokens, cache, form), heard, cache, form);
  }

  // tokens [B, slots, width] and cache [1, slots, width], float at least -> [B, slots,
  // width]. The half of a map that is about the cache is computed once for all
  // examples. Products are in the type of the tokens.
  Tensor renewed(const Tensor& tokens, const Tensor& cache, Fast) const {
    const auto of_tokens = [&](const Linear& map) {
      return map.weight.slice(1, 0, width_);
    };
    const auto of_cache = [&](const Linear& map) {
      return map.weight.slice(1, width_).contiguous();
    };
    const auto mapped = [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
      return at_least_float(longspan::linear(x.to(tokens.scalar_type()), weight, bias));
    };
    const Tensor bias = update_.bias.defined()
                            ? torch::cat({update_.bias, reset_.bias, candidate_.bias})
                            : Tensor();
    const auto now =
        mapped(
            tokens,
            torch::cat({of_tokens(update_), of_tokens(reset_), of_tokens(candidate_)}),
            bias)
            .chunk(3, 2);
    const auto past =
        mapped(cache, torch::cat({of_cache(update_), of_cache(reset_)}), {})
            .chunk(2, 2);
    const auto gate = [&](size_t i) {
      return longspan::sigmoid(now[i] + spread(past[i], now[i].sizes()));
    };
    const Tensor update = gate(0), reset = gate(1);
    Tensor candidate = now[2] + mapped(reset * cache, of_cache(candidate_), {});
    if (norm_weight_.defined())
      candidate = longspan::layer_norm(activate(candidate, {}, Activation::gelu),
                                       at_least_float(norm_weight_),
                                       at_least_float(norm_bias_));
    return cache + update * (candidate - cache);
  }

  Tensor renewed(const Tensor& tokens, const Tensor& cache, Defined) const {
    const Tensor past = cache.expand_as(tokens);
    const auto mapped = [&](const Linear& map, const Tensor& x) {
      return at_least_float(torch::linear(
          torch::cat({tokens, x.to(tokens.scalar_type())}, 2), map.weight, map.bias));
    };
    const Tensor update = mapped(update_, past).sigmoid(),
                 reset = mapped(reset_, past).sigmoid();
    Tensor candidate = mapped(candidate_, reset * past);
    if (norm_weight_.defined())
      candidate = layer_norm_reference(
          activate_reference(candidate, {}, Activation::gelu),
          at_least_float(norm_weight_), at_least_float(norm_bias_));
    return (1 - update) * past + update * candidate;
  }

  // x: [B, N, width]; kept: [B|1, slots, width] -> [B, H, N, w]
  Tensor read(const Tensor& x, const Tensor& kept, Pass& pass, Fast) const {
    const Tensor cache = kept.to(x.scalar_type());
    return block_attention(
               {.q = in_heads(q_(x), heads_)},
               {{.k = in_heads(k_(cache), heads_), .v = in_heads(v_(cache), heads_)}},
               {.dropout = dropout_of(pass)})
        .out;
  }

  Tensor read(const Tensor& x, const Tensor& kept, Pass&, Defined) const {
    const Tensor cache = kept.to(x.scalar_type());
    const auto mapped = [&](const Linear& map, const Tensor& y) {
      return in_heads(torch::linear(y, map.weight), heads_);
    };
    const auto visible =
        torch::ones({1, 1, x.size(1), cache.size(1)}, x.options().dtype(torch::kBool));
    return masked_attention(mapped(q_, x), mapped(k_, cache), mapped(v_, cache),
                            visible, Pass());
  }

  int64_t heads_, embedding_;
  int64_t slots_;      // 0: as many as the first input has tokens
  int64_t width_ = 0;  // of the cache
  bool from_output_, in_heads_, own_;
  std::shared_ptr<Mixer> inner_;
  Projected* projected_;  // inner_ where it is an attention between projections
  Linear update_, reset_, candidate_;
  Tensor norm_weight_, norm_bias_;
  Linear q_, k_, v_, out_;
  Tensor lambda_;
};

}  // namespace

std::vector<MemoryShare> memory_shares(const torch::nn::Module& module) {
  std::vector<MemoryShare> shares;
  if (const auto* const grc = dynamic_cast<const Grc*>(&module))
    shares.push_back({"", grc->memory_share(), grc->is_in_heads()});
  for (const auto& part : module.named_modules("", /*include_self=*/false))
    if (const auto* const grc = dynamic_cast<const Grc*>(part.value().get()))
      shares.push_back({part.key(), grc->memory_share(), grc->is_in_heads()});
  return shares;
}

constinit const Mechanism catalogue::grc{
    .name = "grc",
    .summary = "any attention beside a gated recurrent cache, kept from batch to batch",
    .paper = "Zhang et al. 2023, arXiv:2312.12742",
    .classes = "wrapper, memory, recurrence",
    .time = {"that of its attention + N*slots*(ratio*E + H*dv)", 2},
    .memory = {"N*E + slots*ratio*E", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .positions = true,
            .bias = true,
            .segments = true,
            .global = true,
            .rotary = true,
            .carry = Carry::per_model,
            .dropout = true,
            .grouped = true},
    .can_with = Grc::abilities,
    .state = "what its attention keeps",
    .state_size = Grc::state_size,
    .projections = Projections::none,
    .training =
        "4: the cache is rewritten by all examples of a batch, and read by them",
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{attention: {name: longformer, window: 4}, slots: 16}",
    .make = Mechanism::Make<Mixer>(
        [](const Settings& settings, const Sizes& sizes,
           const std::shared_ptr<Shared>& shared) -> std::shared_ptr<Mixer> {
          return std::make_shared<Grc>(settings, sizes, shared);
        }),
};

}  // namespace longspan
