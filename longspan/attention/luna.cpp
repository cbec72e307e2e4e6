// A short memory beside the tokens: it packs them by attention, and they attend to what
// it packed. Ma et al. 2021, arXiv:2106.01540.
//
// The memory is pass.side, handed on from layer to layer; without one the layers of a
// model begin with the same learned one. Packing p has no output projection, and the
// memory that is handed on is norm(p + packed); residual, norm and feed-forward of the
// tokens are the block's. With a context it is the context that is packed. Dropout is
// of the weights by which tokens attend to the slots.
//
// The causal form is another function. Token t gives slot a of the memory the weight
//   w_ta = log2(1 + 2^(s pq_a.pk_t)),
// and with means over the real tokens j up to t, pads not counted,
//   chosen_t = softmax_a(mean_j (s q_t.k_j) w_ja),  out_t = mean_j (chosen_t.w_j) v_j:
// two scans. The memory stays as it is.
//
// The paper's widths are all E. Here what is packed is Hk heads of dv, which a linear
// map brings to E where it has another width; and tied keys and values are the first d
// and the first dv numbers of one projection.

#include <algorithm>
#include <cmath>
#include <limits>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/prepare.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/linear_attention.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "memory",
     .standard = "16",
     .help = "slots of the learned memory where no second stream is given",
     .least = 1},
    {.name = "tied",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "one projection for keys and values, in packing and in unpacking"},
};

constexpr Preset kPresets[] = {{"lra", "{memory: 256}"}};

class Luna final : public Mixer {
 public:
  Luna(const Settings& settings, const Sizes& sizes, Shared& shared) : sizes_(sizes) {
    const int64_t embedding = sizes.embedding;
    const auto linear = [&](const std::string& name, int64_t width,
                            double gain = M_SQRT1_2) {
      Linear made = make_linear(*this, name, width, embedding, /*has_bias=*/true);
      const torch::NoGradGuard beginning;
      made.weight.mul_(gain);
      return made;
    };
    const auto key_value = [&](const std::string& name) -> KeyValue {
      const int64_t heads = sizes.key_heads;
      if (settings.flag("tied"))
        return {linear(name, heads * std::max(sizes.head_width, sizes.value_width))};
      return {linear(name + "_k", heads * sizes.head_width),
              linear(name + "_v", heads * sizes.value_width)};
    };
    q_ = linear("q", sizes.heads * sizes.head_width);
    memory_q_ = linear("memory_q", sizes.key_heads * sizes.head_width);
    pack_ = key_value("pack");
    unpack_ = key_value("unpack");
    out_ = make_linear(*this, "out", embedding, sizes.heads * sizes.value_width,
                       /*has_bias=*/true);
    if (const int64_t width = sizes.key_heads * sizes.value_width; width != embedding)
      packed_out_ =
          make_linear(*this, "packed_out", embedding, width, /*has_bias=*/false);
    norm_weight_ = register_parameter("norm_weight", torch::ones(embedding));
    norm_bias_ = register_parameter("norm_bias", torch::zeros(embedding));
    memory_ = shared.parameter("luna_memory", [&] {
      return torch::randn({settings.integer("memory"), embedding}) /
             std::sqrt(static_cast<double>(embedding));
    });
    require(memory_.size(0) == settings.integer("memory"),
            "memory must be the same in all layers, got ", settings.integer("memory"),
            " beside ", memory_.size(0));
  }

  Sight sight(int64_t tokens, bool causal) override {
    constexpr int64_t kSlots = 2;
    const auto byte = torch::TensorOptions(torch::kByte);
    const auto of = [&](int64_t rows, int64_t columns, Sees sees) {
      return torch::full({rows, columns}, static_cast<int64_t>(sees), byte);
    };
    Tensor each_other = of(tokens, tokens, Sees::through_memory);
    if (causal) each_other = each_other.tril();
    const Tensor of_slots =
        torch::cat({torch::eye(kSlots, byte),
                    of(kSlots, tokens, causal ? Sees::nothing : Sees::directly)},
                   1);
    const Tensor of_tokens =
        torch::cat({of(tokens, kSlots, Sees::directly), each_other}, 1);
    return {.pairs = torch::cat({of_slots, of_tokens}).unsqueeze(0),
            .memory_rows = kSlots,
            .memory_columns = kSlots};
  }

 private:
  struct KeyValue {
    Linear k, v = {};  // v.weight undefined: k is of both
  };

  // [B, n, E] -> keys [B, Hk, n, d] and values [B, Hk, n, dv]
  std::pair<Tensor, Tensor> keys_and_values(const KeyValue& by, const Tensor& x) const {
    const Tensor k = in_heads(by.k(x), sizes_.key_heads);
    const Tensor v = by.v.weight.defined() ? in_heads(by.v(x), sizes_.key_heads) : k;
    return {k.slice(3, 0, sizes_.head_width), v.slice(3, 0, sizes_.value_width)};
  }

  Tensor memory_queries(const Tensor& memory) const {
    return in_heads(memory_q_(memory), sizes_.key_heads);
  }

  // [B, l, Hk*dv] -> [B, l, E]
  Tensor as_memory(const Tensor& packed) const {
    return packed_out_.weight.defined() ? packed_out_(packed) : packed;
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(sizes_.head_width)); }

  Stream memory_for(const Tensor& x, const Pass& pass) const {
    const int64_t examples = x.size(0), embedding = sizes_.embedding;
    if (!pass.side.x.defined())
      return {.x = spread(memory_, {examples, memory_.size(0), embedding})};
    const auto& [memory, slots, positions] = pass.side;
    require(memory.dim() == 3 && memory.size(0) == examples && memory.size(1) > 0 &&
                memory.size(2) == embedding,
            "the memory, pass.side, must be [B, l, E] = [", examples, ", l, ",
            embedding, "], got ", shape(memory));
    require(!slots.defined() || (slots.scalar_type() == torch::kBool &&
                                 slots.sizes() == memory.sizes().slice(0, 2)),
            "side.tokens must be boolean [B, l] = [", examples, ", ", memory.size(1),
            "], got ", shape(slots));
    return {.x = memory, .tokens = slots};
  }

  // [B, 1, 1, l]: slots of the memory that are padding; or undefined.
  static Tensor hidden_slots(const Stream& memory) {
    if (!memory.tokens.defined()) return {};
    return memory.tokens.to(memory.x.device()).logical_not().unsqueeze(1).unsqueeze(1);
  }

  // How many real tokens there are up to each, [B, N], at least 1.
  static Tensor counted(const Tensor& x, const Tensor& real, Record* state) {
    const Tensor one = real.defined() ? real.to(x.device())
                                      : torch::ones({x.size(0), x.size(1)},
                                                    x.options().dtype(torch::kBool));
    Tensor count = one.cumsum(1);
    if (state) {
      if (const Tensor before = state->get("count"); before.defined())
        count = count + before;
      if (x.size(1) > 0) state->set("count", count.slice(1, x.size(1) - 1).clone());
      state->tokens += x.size(1);
    }
    return count.clamp_min(1);
  }

  Tensor pack(const Stream& memory, const Stream& tokens) const {
    const auto [k, v] = keys_and_values(pack_, tokens.x);
    Source source{.k = k, .v = v};
    if (tokens.tokens.defined()) source.to = open_where(tokens.tokens.to(k.device()));
    return as_memory(
        joined_heads(block_attention({.q = memory_queries(memory.x)}, {source}).out));
  }

  Tensor unpack(const Tensor& x, const Tensor& packed, const Stream& memory,
                const Dropout& dropout) const {
    const auto [k, v] = keys_and_values(unpack_, packed);
    Source source{.k = k, .v = v};
    if (memory.tokens.defined()) source.to = open_where(memory.tokens.to(k.device()));
    return joined_heads(block_attention({.q = in_heads(q_(x), sizes_.heads)}, {source},
                                        {.dropout = dropout})
                            .out);
  }

  // All in float: the sums are over up to N tokens.
  Tensor scanned(const Tensor& x, const Stream& memory, Pass& pass) const {
    Record* const state = pass.state;
    const Tensor queries = at_least_float(in_heads(q_(x), sizes_.heads)) * scale();
    const Tensor asking = at_least_float(memory_queries(memory.x)) * scale();
    const Tensor given = at_least_float(in_heads(pack_.k(x), sizes_.key_heads))
                             .slice(3, 0, sizes_.head_width);
    const auto [k, v] = keys_and_values(unpack_, x);
    const auto type = queries.scalar_type();
    const Tensor weights =
        longspan::softplus(longspan::matmul(given, asking.transpose(2, 3)),
                           M_LN2);  // [B, Hk, N, l]

    Tensor real = pass.mask.tokens;
    const Tensor share =
        counted(x, real, state).to(type).reciprocal().unsqueeze(1).unsqueeze(3);
    if (real.defined()) real = real.to(x.device(), type).unsqueeze(1);
    // mean_j (a_t.b_j) c_j
    const auto mean = [&](const char* name, const Tensor& a, const Tensor& b,
                          const Tensor& c) {
      LinearInputs inputs{.q = a * share, .k = b, .v = c, .weights = real};
      if (state) inputs.state.sums = state->get(name);
      const LinearAttended past =
          linear_attention(inputs, {.causal = true, .normaliser = Normaliser::none});
      if (state) state->set(name, past.state.sums);
      return past.out;
    };
    const Tensor logits = mean("keys", queries, at_least_float(k), weights);
    Tensor chosen;  // [B, H, N, l]
    if (const Tensor hidden = hidden_slots(memory); hidden.defined())
      chosen = logits.masked_fill(hidden, std::numeric_limits<float>::lowest())
                   .softmax(3)
                   .masked_fill(hidden, 0);
    else
      chosen = logits.softmax(3);
    if (const Dropout drop = dropout_of(pass); drop.probability > 0)
      chosen = dropout(chosen, drop.probability, drop.key);
    return joined_heads(mean("values", chosen, weights, at_least_float(v)))
        .to(x.scalar_type());
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    const Stream memory = memory_for(x, pass);
    if (pass.mask.causal) return out_(scanned(x, memory, pass));
    // A context is packed once for all steps of a decoding.
    Record* const state = pass.crosses() ? pass.state : nullptr;
    Tensor packed = state ? state->get("packed") : Tensor();
    if (!packed.defined()) packed = pack(memory, key_tokens(x, pass));
    if (state) state->set("packed", packed);
    Tensor next = longspan::layer_norm(memory.x + packed, norm_weight_, norm_bias_);
    if (const Tensor hidden = hidden_slots(memory); hidden.defined())
      next = next.masked_fill(hidden.squeeze(1).transpose(1, 2), 0);
    const Tensor out = out_(unpack(x, packed, memory, dropout_of(pass)));
    pass.side.x = next;
    return out;
  }

  // The pairs of tokens [B, 1, N, N] with the share of each key in the mean of a query.
  static Tensor shares(const Tensor& x, const Tensor& real) {
    const Tensor one = torch::ones({x.size(0), 1, x.size(1), x.size(1)}, x.options());
    const Tensor past =
        (real.defined() ? one * real.to(x.options()).unsqueeze(1).unsqueeze(1) : one)
            .tril();
    return past / past.sum(3, /*keepdim=*/true).clamp_min(1);
  }

  Tensor defined_causally(const Tensor& x, const Stream& memory,
                          const Pass& pass) const {
    const int64_t group = sizes_.heads / sizes_.key_heads;
    const auto for_all = [&](const Tensor& y) { return y.repeat_interleave(group, 1); };
    const auto [k, v] = keys_and_values(unpack_, x);
    const Tensor scores =
        scale() * memory_queries(memory.x).matmul(
                      keys_and_values(pack_, x).first.transpose(2, 3));
    const Tensor weights = for_all(  // [B, H, l, N]
        scores.clamp_min(0) + torch::log2(1 + torch::exp2(-scores.abs())));
    const Tensor share = shares(x, pass.mask.tokens);
    const Tensor pairs =
        scale() * in_heads(q_(x), sizes_.heads).matmul(for_all(k).transpose(2, 3));
    Tensor logits = (pairs * share).matmul(weights.transpose(2, 3));
    const Tensor hidden = hidden_slots(memory);
    if (hidden.defined())
      logits = logits.masked_fill(hidden, hidden_score(x.scalar_type()));
    Tensor chosen = logits.softmax(3);
    if (hidden.defined()) chosen = chosen.masked_fill(hidden, 0);
    return joined_heads((chosen.matmul(weights) * share).matmul(for_all(v)));
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const Stream memory = memory_for(x, pass);
    if (pass.mask.causal) return out_(defined_causally(x, memory, pass));
    const Tensor hidden = hidden_slots(memory);
    const auto attended = [](const Tensor& q, const std::pair<Tensor, Tensor>& kv,
                             const Tensor& hide) {
      const auto& [k, v] = kv;
      const Tensor none = torch::zeros({1, 1, 1, 1}, q.options().dtype(torch::kBool));
      const Tensor seen = (hide.defined() ? hide : none)
                              .logical_not()
                              .expand({q.size(0), 1, q.size(2), k.size(2)});
      return joined_heads(masked_attention(q, k, v, seen, Pass()));
    };
    const Stream tokens = key_tokens(x, pass);
    const Tensor padding =
        tokens.tokens.defined()
            ? tokens.tokens.to(x.device()).logical_not().unsqueeze(1).unsqueeze(1)
            : Tensor();
    const Tensor packed = as_memory(
        attended(memory_queries(memory.x), keys_and_values(pack_, tokens.x), padding));
    Tensor next = layer_norm_reference(memory.x + packed, norm_weight_, norm_bias_);
    if (hidden.defined()) next = next.masked_fill(hidden.squeeze(1).transpose(1, 2), 0);
    const Tensor out = out_(attended(in_heads(q_(x), sizes_.heads),
                                     keys_and_values(unpack_, packed), hidden));
    pass.side.x = next;
    return out;
  }

  Sizes sizes_;
  Linear q_, memory_q_, out_, packed_out_;
  KeyValue pack_, unpack_;
  Tensor norm_weight_, norm_bias_;  // [E]
  Tensor memory_;                   // [l, E]
};

}  // namespace

constinit const Mechanism catalogue::luna{
    .name = "luna",
    .summary = "attention over a memory that packs the tokens by attention",
    .paper = "Ma et al. 2021, arXiv:2106.01540",
    .classes = "memory",
    .time = {"N*memory*d", 1},
    .memory = {"N*(d + memory)", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .decoding = true,
            .side = true,
            .dropout = true,
            .grouped = true},
    .state =
        "two sums over all tokens, of keys and of values by slot of the memory: "
        "H*(d*(memory + 1) + memory*(dv + 1)), and how many they are",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t) {
          const int64_t slots = settings.integer("memory");
          return 1 + sizes.heads * (sizes.head_width * (slots + 1) +
                                    slots * (sizes.value_width + 1));
        },
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{memory: 4}",
    .make = Mechanism::Make<Mixer>(
        [](const Settings& settings, const Sizes& sizes,
           const std::shared_ptr<Shared>& shared) -> std::shared_ptr<Mixer> {
          return std::make_shared<Luna>(settings, sizes, *shared);
        }),
};

}  // namespace longspan
