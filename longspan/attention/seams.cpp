#include "longspan/attention/mechanism.h"

#include "longspan/attention/attention_watch.h"
#include "longspan/attention/rotary.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

// Zeroes the rows of padded queries; the token axis of `out` is the last but one.
Tensor without_padding(const Tensor& out, const Tensor& tokens) {
  if (!tokens.defined()) return out;
  auto padding = tokens.to(out.device()).logical_not().unsqueeze(-1);
  if (out.dim() == 4) padding = padding.unsqueeze(1);
  // Unlike masked_fill() in one operation, and into rows that lie as those of `out`.
  return torch::where(padding, torch::zeros({}, out.options()), out);
}

void check_positions(const Tensor& positions, const std::string& who, int64_t examples,
                     int64_t tokens) {
  if (!positions.defined()) return;
  require(is_integer(positions), who, " must be int32 or int64, got ",
          positions.scalar_type());
  const bool fits = (positions.dim() == 1 && positions.size(0) == tokens) ||
                    (positions.dim() == 2 && positions.size(0) == examples &&
                     positions.size(1) == tokens);
  require(fits, who, " must be [n] or [B, n] with n = ", tokens, " and B = ", examples,
          ", got ", shape(positions));
}

}  // namespace

Sizes Sizes::completed() const {
  Sizes sizes = *this;
  require(heads >= 1 && head_width >= 1,
          "sizes: heads and head_width must be 1 or more, got ", heads, " and ",
          head_width);
  if (sizes.key_heads == 0) sizes.key_heads = heads;
  if (sizes.value_width == 0) sizes.value_width = head_width;
  if (sizes.embedding == 0) sizes.embedding = heads * head_width;
  if (sizes.inner == 0) sizes.inner = 4 * sizes.embedding;
  require(sizes.key_heads >= 1 && heads % sizes.key_heads == 0,
          "sizes: key_heads must be a divisor of the ", heads, " heads, got ",
          key_heads);
  require(sizes.embedding >= 1 && sizes.value_width >= 1 && sizes.inner >= 1 &&
              longest >= 0,
          "sizes: embedding, value_width and inner must be 1 or more and longest 0 or ",
          "more, got ", embedding, ", ", value_width, ", ", inner, " and ", longest);
  require(layers >= 1 && layer >= 0 && layer < layers,
          "sizes: layer must be 0 or more and less than layers, got ", layer, " of ",
          layers);
  return sizes;
}

void Part::belongs_to(const Mechanism& mechanism) {
  belongs_to(mechanism, mechanism.can);
}

void Part::belongs_to(const Mechanism& mechanism, const Abilities& can) {
  mechanism_ = &mechanism;
  can_ = std::make_shared<const Abilities>(can);
}

const Abilities& Part::can() const {
  TORCH_INTERNAL_ASSERT(can_, "a part that make() did not make");
  return *can_;
}

Tensor Shared::parameter(const std::string& name, const std::function<Tensor()>& make) {
  if (const Tensor* known = parameters_.find(name)) return *known;
  return register_parameter(name, make());
}

Tensor Shared::buffer(const std::string& name, const std::function<Tensor()>& make) {
  for (const auto& known : named_buffers(/*recurse=*/false))
    if (known.key() == name) return known.value();
  return register_buffer(name, make());
}

void convert(torch::nn::Module& module, torch::Device device, torch::Dtype type) {
  const auto move = [&](Tensor& tensor) {
    tensor.set_data(tensor.is_floating_point() ? tensor.detach().to(device, type)
                                               : tensor.detach().to(device));
  };
  for (auto& parameter : module.parameters()) move(parameter);
  for (auto& buffer : module.buffers()) move(buffer);
}

template <class Work>
auto Part::guarded(Pass& pass, Work work) const {
  Record* const records[] = {pass.carry, pass.state, pass.choices};
  Record before[3];
  for (int i = 0; i < 3; ++i)
    if (records[i]) before[i] = *records[i];
  const auto restore = [&] {
    for (int i = 0; i < 3; ++i)
      if (records[i]) *records[i] = before[i];
  };
  try {
    return work();
  } catch (const Error& error) {
    restore();
    const std::string_view message = error.what();
    if (message.starts_with(mechanism().name)) throw;
    fail(mechanism().name, ": ", message);
  } catch (...) {
    restore();
    throw;
  }
}

void Part::check_pass(const Pass& pass, int64_t examples, int64_t tokens) const {
  const auto& [name, can] = std::tie(mechanism_->name, *can_);
  const auto refuse = [&](bool asked, bool able, const char* what) {
    require(!asked || able, name, ": ", what);
  };
  const Mask& mask = pass.mask;
  refuse(mask.tokens.defined(), can.padding,
         "takes no padding, got mask.tokens; give sequences of one length");
  if (!std::holds_alternative<Mechanism::Make<FeedForward>>(mechanism_->make)) {
    refuse(mask.causal, can.causal != Causal::never,
           "has no causal form, got mask.causal = true");
    refuse(!mask.causal, can.causal != Causal::always,
           "has only a causal form, got mask.causal = false");
    refuse(mask.global.defined(), can.global, "has no global tokens, got mask.global");
    refuse(mask.segment.defined(), can.segments, "takes no segments, got mask.segment");
    refuse(pass.crosses(), can.cross,
           "is self-attention only, got a context; use a mechanism that claims cross");
    refuse(pass.crosses() && mask.causal, can.causal_cross,
           "has no causal form over a context, got mask.causal = true");
    refuse(pass.positions.defined(), can.positions,
           "takes no positions, got pass.positions");
    refuse(pass.bias.defined(), can.bias, "takes no bias of scores, got pass.bias");
    refuse(pass.rotary != 0, can_turn(*mechanism_, can),
           "has no queries and keys that could be turned, got pass.rotary");
    refuse(pass.side.x.defined(), can.side, "has no second stream, got pass.side");
    refuse(pass.carry != nullptr, can.carry != Carry::none,
           "keeps nothing from batch to batch, got pass.carry");
    refuse(pass.state != nullptr && !pass.crosses(), can.decoding,
           "has no decoding state, got pass.state; run the whole sequence");
    refuse(pass.training && pass.dropout > 0, can.dropout,
           "does not drop attention weights, got pass.dropout");
  }

  require(pass.state == nullptr || mask.causal || pass.crosses(), name,
          ": decoding is causal, got pass.state with mask.causal = false");
  require(pass.state == nullptr || !mask.causal || !pass.crosses() ||
              pass.positions.defined(),
          name, ": causal steps over a context need pass.positions to say which keys ",
          "are past");
  require(!pass.crosses() || !mask.segment.defined(), name,
          ": segments are of one sequence, got mask.segment with a context");
  require(pass.dropout >= 0 && pass.dropout < 1, name,
          ": pass.dropout must be in [0, 1), got ", pass.dropout);
  const auto of_tokens = [&](const Tensor& tensor, const char* what, bool boolean) {
    if (!tensor.defined()) return;
    require(tensor.dim() == 2 && tensor.size(0) == examples && tensor.size(1) == tokens,
            name, ": ", what, " must be [B, N] = [", examples, ", ", tokens, "], got ",
            shape(tensor));
    if (boolean)
      require(tensor.scalar_type() == torch::kBool, name, ": ", what,
              " must be boolean, true where a token counts, got ",
              tensor.scalar_type());
    else
      require(is_integer(tensor), name, ": ", what, " must be int32 or int64, got ",
              tensor.scalar_type());
  };
  of_tokens(mask.tokens, "mask.tokens", true);
  of_tokens(mask.global, "mask.global", true);
  of_tokens(mask.segment, "mask.segment", false);
  check_positions(pass.positions, std::string(name) + ": pass.positions", examples,
                  tokens);
}

void Part::check_reference(const Pass& pass) const {
  require(pass.state == nullptr && !(pass.training && pass.dropout > 0),
          mechanism().name,
          ": the reference takes neither a decoding state nor dropout; run it on the ",
          "whole sequence in evaluation");
}

namespace {

// Checks q, k and v against each other and against what the row claims.
void check_heads(const Mechanism& row, const Tensor& q, const Tensor& k,
                 const Tensor& v, const Pass& pass) {
  const auto& name = row.name;
  require(pass.rotary == 0, name,
          ": is handed queries and keys, so pass.rotary must be 0; turn them by ",
          "rotated() before");
  require(v.defined() && v.dim() == 4, name, ": v must be [B, Hk, M, dv], got ",
          shape(v));
  if (row.projections == Projections::v) return;
  require(q.defined() && k.defined() && q.dim() == 4 && k.dim() == 4, name,
          ": q and k must be [B, H, N, d] and [B, Hk, M, d], got ", shape(q), " and ",
          shape(k));
  require(q.size(0) == k.size(0) && k.size(0) == v.size(0) && k.size(2) == v.size(2) &&
              k.size(1) == v.size(1) && q.size(3) == k.size(3) && k.size(1) > 0 &&
              q.size(1) % k.size(1) == 0,
          name, ": q, k and v must be [B, H, N, d], [B, Hk, M, d] and [B, Hk, M, dv] ",
          "with Hk a divisor of H, got ", shape(q), ", ", shape(k), " and ", shape(v));
  require(q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type() &&
              q.device() == k.device() && k.device() == v.device(),
          name, ": q, k and v must have one type and device, got ", q.scalar_type(),
          " on ", q.device(), ", ", k.scalar_type(), " on ", k.device(), " and ",
          v.scalar_type(), " on ", v.device());
  require(row.can.grouped || q.size(1) == k.size(1), name,
          ": needs as many heads of keys as of queries, got ", k.size(1), " and ",
          q.size(1));
  const bool crosses = pass.crosses() || q.size(2) != k.size(2);
  require(row.can.cross || !crosses, name, ": is self-attention only, got ", q.size(2),
          " queries and ", k.size(2), " keys");
  require(pass.state == nullptr || !crosses, name,
          ": with pass.state, k and v are those of the new tokens, got ", q.size(2),
          " queries and ", k.size(2), " keys or a context");
  const Tensor& context = pass.context.tokens;
  require(!context.defined() ||
              (context.scalar_type() == torch::kBool && context.dim() == 2 &&
               context.size(0) == k.size(0) && context.size(1) == k.size(2)),
          name, ": context.tokens must be boolean [B, M] = [", k.size(0), ", ",
          k.size(2), "], got ", shape(context));
  check_positions(pass.context.positions, std::string(name) + ": context.positions",
                  k.size(0), k.size(2));
}

}  // namespace

Tensor Attention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                          Pass& pass) {
  check_heads(mechanism(), q, k, v, pass);
  const Tensor& sized = q.defined() ? q : v;
  check_pass(pass, sized.size(0), sized.size(2));
  return AttentionWatch::watched(
      *this, v, pass, [this, q, k](const Tensor& values, Pass& now) {
        return without_padding(guarded(now, [&] { return run(q, k, values, now); }),
                               now.mask.tokens);
      });
}

Tensor Attention::reference(const Tensor& q, const Tensor& k, const Tensor& v,
                            Pass& pass) {
  check_heads(mechanism(), q, k, v, pass);
  const Tensor& sized = q.defined() ? q : v;
  check_pass(pass, sized.size(0), sized.size(2));
  check_reference(pass);
  return without_padding(guarded(pass, [&] { return define(q, k, v, pass); }),
                         pass.mask.tokens);
}

bool Attention::has_global_projections() const {
  return mechanism().projections == Projections::qkv_global;
}

Tensor TokenPart::forward(const Tensor& x, Pass& pass) {
  check_tokens(x, pass);
  return without_padding(guarded(pass, [&] { return run(x, pass); }), pass.mask.tokens);
}

Tensor TokenPart::reference(const Tensor& x, Pass& pass) {
  check_tokens(x, pass);
  check_reference(pass);
  return without_padding(guarded(pass, [&] { return define(x, pass); }),
                         pass.mask.tokens);
}

Stream Stack::forward(const Tensor& x, Pass& pass) {
  check_tokens(x, pass);
  Stream out = guarded(pass, [&] { return run(x, pass); });
  out.x = without_padding(out.x, out.tokens);
  return out;
}

Stream Stack::reference(const Tensor& x, Pass& pass) {
  check_tokens(x, pass);
  check_reference(pass);
  Stream out = guarded(pass, [&] { return define(x, pass); });
  out.x = without_padding(out.x, out.tokens);
  return out;
}

void Part::check_tokens(const Tensor& x, const Pass& pass) const {
  require(x.defined() && x.dim() == 3 && x.is_floating_point(), mechanism().name,
          ": x must be [B, N, E] of a floating type, got ", shape(x));
  check_pass(pass, x.size(0), x.size(1));
}

}  // namespace longspan
