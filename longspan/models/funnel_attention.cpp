#include "longspan/models/funnel_attention.h"

#include <utility>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/prepare.h"

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
  distances_.map.weight = uniform("distance_weight", {width, places_.own->width()});
  distances_.content_bias = uniform("content_bias", {sizes.heads, sizes.head_width});
  distances_.distance_bias = uniform("distance_bias", {sizes.heads, sizes.head_width});
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
  Queries queries{.q = distances_.queries(q)};
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
  if (at.causal && q.size(2) == 1) {
    const int64_t place = at.first * at.stride;
    const Tensor waves =
        at.waves->of(place - keys + 1, place + 1, at_least_float(q)).flip(0);
    return {.dense = distances_.of_one(q, waves)};
  }
  const int64_t nearest = at.causal ? 0 : 1 - keys;
  Tensor vectors = distances_.vectors(at.waves->of(nearest, keys, q));
  if (at.apart) vectors = torch::constant_pad_nd(vectors, {0, 0, 0, 1});
  return {.vectors = vectors, .offset = distances_.offset(), .first = nearest};
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
  Tensor of_distance = distances_.defined(q, at.waves->at(query - key, x));
  if (at.apart)
    of_distance =
        torch::constant_pad_nd(of_distance.slice(2, 1).slice(3, 1), {1, 0, 1, 0});
  const Tensor all = torch::ones_like(query - key, torch::kBool);
  Tensor visible = (at.causal ? key <= query : all).unsqueeze(0).unsqueeze(0);
  if (real.defined())
    visible = visible.logical_and(real.to(x.device()).unsqueeze(1).unsqueeze(1));
  Pass biased;
  biased.bias.dense = of_distance;
  const Tensor out = masked_attention(
      q + distances_.content_bias.unsqueeze(1), heads(k_, seen, sizes_.key_heads),
      heads(v_, seen, sizes_.key_heads), visible, biased);
  return torch::linear(joined_heads(out), out_.weight, out_.bias);
}

}  // namespace longspan
