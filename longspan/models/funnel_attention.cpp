#include "longspan/models/funnel_attention.h"

#include <algorithm>
#include <cmath>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/prepare.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// No row of the catalogue: what the layers of `funnel` can.
constinit const Mechanism kRow{
    .name = "funnel",
    .summary = "attention by contents and distances, queries perhaps pooled",
    .paper = "Dai et al. 2020, arXiv:2006.03236",
    .classes = "downsampling",
    .time = {"N*M*d", 2},
    .memory = {"N*E", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .side = true,
            .dropout = true,
            .grouped = true},
    .projections = Projections::none,
    .full = true,
    .make = Mechanism::Make<Mixer>(nullptr),
};

}  // namespace

DistanceWaves::DistanceWaves(int64_t width, int64_t step) : step_(step) {
  const int64_t count = (width + 1) / 2;
  frequencies_ = torch::exp(torch::arange(count, torch::kDouble) *
                            (-std::log(10000.0) / static_cast<double>(count)));
}

Tensor DistanceWaves::at(const Tensor& distances, const Tensor& like) const {
  const Tensor angles = distances.unsqueeze(-1) * frequencies_.to(like.device());
  const auto type = like.scalar_type();
  return torch::cat({angles.sin().to(type), angles.cos().to(type)}, -1);
}

Tensor DistanceWaves::of(int64_t from, int64_t to, const Tensor& like) {
  const std::lock_guard alone(mutex_);
  const int64_t needed = std::max(-from, to - 1);
  const bool alike = table_.defined() && table_.scalar_type() == like.scalar_type() &&
                     table_.device() == like.device();
  if (!alike || needed > reach_) {
    // A sequence that grows token by token needs a new table seldom.
    reach_ = alike ? std::max(needed, 2 * reach_) : needed;
    const auto exact = torch::TensorOptions(torch::kDouble).device(like.device());
    table_ = at(torch::arange(-reach_, reach_ + 1, exact) * step_, like);
  }
  return table_.slice(0, from + reach_, to + reach_);
}

FunnelAttention::FunnelAttention(const Sizes& sizes, Places places)
    : sizes_(sizes), places_(std::move(places)) {
  belongs_to(kRow);
  const int64_t width = sizes.heads * sizes.head_width;
  // A softmax is the same whatever is added to all keys, and u is the bias of queries.
  q_ = make_linear(*this, "q", width, sizes.embedding, /*has_bias=*/false);
  k_ = make_linear(*this, "k", sizes.key_heads * sizes.head_width, sizes.embedding,
                   /*has_bias=*/false);
  v_ = make_linear(*this, "v", sizes.key_heads * sizes.value_width, sizes.embedding,
                   /*has_bias=*/true);
  out_ = make_linear(*this, "out", sizes.embedding, sizes.heads * sizes.value_width,
                     /*has_bias=*/true);
  constexpr double kMost = 0.1;
  const auto uniform = [&](const char* name, at::IntArrayRef shape) {
    return register_parameter(name, kMost * torch::rand(shape));
  };
  distance_.weight = uniform("distance_weight", {width, places_.own->width()});
  content_bias_ = uniform("content_bias", {sizes.heads, sizes.head_width});
  distance_bias_ = uniform("distance_bias", {sizes.heads, sizes.head_width});
}

FunnelAttention::Geometry FunnelAttention::geometry(const Pass& pass) const {
  const bool pooled = pass.side.x.defined();
  return {.causal = pass.mask.causal,
          .apart = places_.separate_first && !pass.mask.causal,
          .stride = pooled ? places_.pool : 1,
          .first = pass.state ? pass.state->tokens : 0,
          .waves = pooled ? places_.below.get() : places_.own.get()};
}

Tensor FunnelAttention::run(const Tensor& x, Pass& pass) {
  const Geometry at = geometry(pass);
  const bool pooled = pass.side.x.defined();
  const Tensor& seen = pooled ? pass.side.x : x;
  Tensor real = pooled ? pass.side.tokens : pass.mask.tokens;
  Source source{.k = in_heads(k_(seen), sizes_.key_heads),
                .v = in_heads(v_(seen), sizes_.key_heads)};
  if (Record* const state = pass.state) {
    if (!real.defined())
      real = torch::ones({seen.size(0), seen.size(1)}, x.options().dtype(torch::kBool));
    source.k = state->grow("k", source.k, 2);
    source.v = state->grow("v", source.v, 2);
    real = state->grow("tokens", real.to(x.device()), 1);
    state->tokens += x.size(1);
  }
  const int64_t count = x.size(1), keys = source.k.size(2);
  if (count == 0) return x;
  if (real.defined()) source.to = open_where(real.to(x.device()));

  const Tensor q = in_heads(q_(x), sizes_.heads);
  Queries queries{.q = q + spread(content_bias_.unsqueeze(1), q.sizes())};
  const auto whole = torch::TensorOptions(torch::kLong).device(x.device());
  const Tensor places =
      torch::arange(at.first, at.first + count - int64_t{at.apart}, whole) * at.stride;
  queries.positions = places;
  if (at.apart) {
    // So far off on opposite sides that every distance is beyond the table, whose last
    // vector is 0.
    queries.positions = torch::cat({torch::full({1}, 2 * keys, whole), places});
    source.positions =
        torch::cat({torch::full({1}, -keys, whole), torch::arange(keys - 1, whole)});
  }
  source.bias = bias(at, keys, q);
  if (at.causal)
    source.layout =
        Layout(count, keys, [at](int64_t query, std::vector<Span>& visible) {
          visible.push_back({0, (at.first + query) * at.stride + 1});
        });
  const BlockAttention options{.dropout = dropout_of(pass)};
  return out_(joined_heads(block_attention(queries, {source}, options).out));
}

// q [B, H, N, d] is without its biases.
Bias FunnelAttention::bias(const Geometry& at, int64_t keys, const Tensor& q) const {
  if (at.causal && q.size(2) == 1) return {.dense = scores_of_one(at, keys, q)};
  const int64_t nearest = at.causal ? 0 : 1 - keys;
  Tensor vectors = distance_(at.waves->of(nearest, keys, q))
                       .view({-1, sizes_.heads, sizes_.head_width})
                       .transpose(0, 1);
  if (at.apart) vectors = torch::constant_pad_nd(vectors, {0, 0, 0, 1});
  return {
      .vectors = vectors, .offset = distance_bias_ - content_bias_, .first = nearest};
}

// The scores [B, H, 1, M] of distances of a single query, a step of decoding: to map it
// to waves is less work than to map all waves to heads.
Tensor FunnelAttention::scores_of_one(const Geometry& at, int64_t keys,
                                      const Tensor& q) const {
  const Tensor shifted = at_least_float(q) +
                         at_least_float(spread(distance_bias_.unsqueeze(1), q.sizes()));
  const Tensor by_wave = longspan::matmul(shifted, at_least_float(distance_weight()));
  const int64_t place = at.first * at.stride;
  const Tensor waves = at.waves->of(place - keys + 1, place + 1, shifted).flip(0);
  return longspan::matmul(by_wave, waves.t()) /
         std::sqrt(static_cast<double>(sizes_.head_width));
}

Tensor FunnelAttention::define(const Tensor& x, Pass& pass) {
  const Geometry at = geometry(pass);
  const bool pooled = pass.side.x.defined();
  const Tensor& seen = pooled ? pass.side.x : x;
  const Tensor& real = pooled ? pass.side.tokens : pass.mask.tokens;
  const auto heads = [](const Linear& by, const Tensor& y, int64_t count) {
    return in_heads(torch::linear(y, by.weight, by.bias), count);
  };
  // The first token that each stands for, [n].
  const auto ids = [&](int64_t count, int64_t step) {
    const Tensor place =
        torch::arange(count, torch::TensorOptions(torch::kDouble).device(x.device()));
    return at.apart ? 1 + (place - 1) * step : place * step;
  };
  const int64_t step = at.waves->step();
  const Tensor query = ids(x.size(1), step * at.stride).unsqueeze(1),
               key = ids(seen.size(1), step).unsqueeze(0);
  const Tensor q = heads(q_, x, sizes_.heads);
  const Tensor by_wave = (q + distance_bias_.unsqueeze(1)).matmul(distance_weight());
  Tensor of_distance =
      torch::einsum("bhif,ijf->bhij", {by_wave, at.waves->at(query - key, x)});
  if (at.apart)
    of_distance =
        torch::constant_pad_nd(of_distance.slice(2, 1).slice(3, 1), {1, 0, 1, 0});
  const Tensor all = torch::ones_like(query - key, torch::kBool);
  Tensor visible = (at.causal ? key <= query : all).unsqueeze(0).unsqueeze(0);
  if (real.defined())
    visible = visible.logical_and(real.to(x.device()).unsqueeze(1).unsqueeze(1));
  Pass biased;
  biased.bias.dense = of_distance / std::sqrt(static_cast<double>(sizes_.head_width));
  const Tensor out = masked_attention(
      q + content_bias_.unsqueeze(1), heads(k_, seen, sizes_.key_heads),
      heads(v_, seen, sizes_.key_heads), visible, biased);
  return torch::linear(joined_heads(out), out_.weight, out_.bias);
}

}  // namespace longspan
