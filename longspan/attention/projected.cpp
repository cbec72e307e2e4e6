#include "longspan/attention/projected.h"

#include <utility>

#include "longspan/attention/head_axis.h"
#include "longspan/attention/rotary.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

// Takes out of a pass what the projections have seen to: the decoding state of a
// context, whose keys are whole at once, and the turning of queries and keys.
class WithoutDone {
 public:
  explicit WithoutDone(Pass& pass)
      : pass_(pass), state_(pass.state), rotary_(std::exchange(pass.rotary, 0)) {
    if (pass.crosses()) pass.state = nullptr;
  }
  ~WithoutDone() {
    pass_.state = state_;
    pass_.rotary = rotary_;
  }
  WithoutDone(const WithoutDone&) = delete;
  WithoutDone& operator=(const WithoutDone&) = delete;

 private:
  Pass& pass_;
  Record* state_;
  double rotary_;
};

}  // namespace

Projected::Projected(std::shared_ptr<Attention> attention, const Sizes& sizes,
                     const ProjectionOptions& options)
    : sizes_(sizes.completed()), options_(options) {
  attention_ = register_module("attention", std::move(attention));
  const Mechanism& row = attention_->mechanism();
  belongs_to(row, attention_->can());
  require(row.projections != Projections::none, row.name,
          ": has no projections to be put between");
  require(row.projections != Projections::qk_v || sizes_.key_heads == sizes_.heads,
          row.name, ": queries and keys are one, so key_heads must be heads, ",
          sizes_.heads, ", got ", sizes_.key_heads);
  const auto [projections, embedding] = std::pair(row.projections, sizes_.embedding);
  const bool has_global = attention_->has_global_projections();
  const auto linear = [&](const char* name, int64_t out, int64_t in) {
    return make_linear(*this, name, out, in, options_.bias, options_.rank);
  };
  if (projections != Projections::v)
    q_ = linear("q", sizes_.heads * sizes_.head_width, embedding);
  if (projections == Projections::qkv || has_global)
    k_ = linear("k", sizes_.key_heads * sizes_.head_width, embedding);
  v_ = linear("v", sizes_.key_heads * sizes_.value_width, embedding);
  if (has_global) {
    global_q_ = copied("global_q", q_);
    global_k_ = copied("global_k", k_);
    global_v_ = copied("global_v", v_);
  }
  out_ = linear("out", embedding, sizes_.heads * sizes_.value_width);
}

Linear Projected::copied(const std::string& name, const Linear& from) {
  const auto copy = [&](const char* part, const Tensor& of) {
    return of.defined() ? register_parameter(name + part, of.detach().clone()) : of;
  };
  return {.weight = copy("_weight", from.weight),
          .bias = copy("_bias", from.bias),
          .down = copy("_down", from.down)};
}

// Pays where there are more tokens than rows of weights to be put side by side. Kernels
// want their rows to begin at multiples of 16 bytes.
bool Projected::projects_together(const Tensor& x, const Pass& pass) const {
  if (!x.is_cuda() || pass.crosses() || options_.rank > 0 || !q_.weight.defined() ||
      !k_.weight.defined())
    return false;
  constexpr int64_t kAligned = 8;
  for (const Linear& map : {q_, k_, v_})
    if (map.weight.size(0) % kAligned != 0) return false;
  return x.size(0) * x.size(1) >= sizes_.embedding;
}

Heads Projected::heads(const Tensor& x, Pass& pass) {
  require(x.size(2) == sizes_.embedding, mechanism().name,
          ": x must be as wide as the embedding, ", sizes_.embedding, ", got ",
          shape(x));
  Heads heads;
  pass.global = {};
  if (global_q_.weight.defined() && pass.mask.global.defined() && !pass.mask.causal)
    pass.global = {.q = in_heads(global_q_(x), sizes_.heads),
                   .k = in_heads(global_k_(x), sizes_.key_heads),
                   .v = in_heads(global_v_(x), sizes_.key_heads)};
  if (projects_together(x, pass)) {
    const auto all = together({q_, k_, v_}, x);
    return {.q = in_heads(all[0], sizes_.heads),
            .k = in_heads(all[1], sizes_.key_heads),
            .v = in_heads(all[2], sizes_.key_heads)};
  }
  if (q_.weight.defined()) heads.q = in_heads(q_(x), sizes_.heads);
  Record* const state = pass.crosses() ? pass.state : nullptr;
  if (state && state->get("context_v").defined()) {
    heads.k = state->get("context_k");
    heads.v = state->get("context_v");
    return heads;
  }
  require(!pass.crosses() || pass.context.x.defined(), mechanism().name,
          ": the context must come with its x");
  const Tensor& other = pass.crosses() ? pass.context.x : x;
  if (k_.weight.defined()) heads.k = in_heads(k_(other), sizes_.key_heads);
  if (!k_.weight.defined() && q_.weight.defined())
    heads.k = pass.crosses() ? in_heads(q_(other), sizes_.heads) : heads.q;
  heads.v = in_heads(v_(other), sizes_.key_heads);
  if (state) {
    if (heads.k.defined()) state->set("context_k", heads.k);
    state->set("context_v", heads.v);
  }
  return heads;
}

Heads Projected::turned(Heads heads, Pass& pass) const {
  if (pass.rotary == 0) return heads;
  require(!pass.crosses(), mechanism().name,
          ": pass.rotary turns tokens of one sequence, got a context");
  const bool one = heads.k.is_same(heads.q);
  const Tensor at =
      pass.positions.defined()
          ? pass.positions
          : torch::arange(heads.q.size(2), heads.q.options().dtype(torch::kLong)) +
                (pass.state ? pass.state->tokens : 0);
  const auto turn = [&](const Tensor& x) {
    return x.defined() ? rotated(x, at, pass.rotary) : x;
  };
  heads.q = turn(heads.q);
  heads.k = one ? heads.q : turn(heads.k);
  pass.global.q = turn(pass.global.q);
  pass.global.k = turn(pass.global.k);
  return heads;
}

Tensor Projected::attended(const Tensor& x, Pass& pass) {
  check_tokens(x, pass);
  const auto [q, k, v] = turned(heads(x, pass), pass);
  const WithoutDone rest(pass);
  return attention_->forward(q, k, v, pass);
}

Tensor Projected::attended_reference(const Tensor& x, Pass& pass) {
  check_tokens(x, pass);
  const auto [q, k, v] = turned(heads(x, pass), pass);
  const WithoutDone rest(pass);
  return attention_->reference(q, k, v, pass);
}

Tensor Projected::projected_back(const Tensor& heads) const {
  return out_(joined_heads(heads));
}

Tensor Projected::run(const Tensor& x, Pass& pass) {
  return projected_back(attended(x, pass));
}

Tensor Projected::define(const Tensor& x, Pass& pass) {
  return projected_back(attended_reference(x, pass));
}

std::shared_ptr<Mixer> make_mixer(const Mechanism& mechanism, const Sizes& sizes,
                                  const Value::Map& settings,
                                  const std::shared_ptr<Shared>& shared,
                                  const ProjectionOptions& options) {
  if (std::holds_alternative<Mechanism::Make<Attention>>(mechanism.make))
    return std::make_shared<Projected>(
        make<Attention>(mechanism, sizes, settings, shared), sizes, options);
  require(options.rank == 0 && !options.bias, mechanism.name,
          ": makes its own projections, so rank must be 0 and bias of projections ",
          "false, got rank ", options.rank, " and bias ", options.bias);
  return make<Mixer>(mechanism, sizes, settings, shared);
}

}  // namespace longspan
