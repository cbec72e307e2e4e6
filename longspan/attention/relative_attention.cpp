#include "longspan/attention/relative_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/attention_weights.h"
#include "longspan/kernels/total.h"

namespace longspan {

using torch::Tensor;

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

Tensor DistanceScores::queries(const Tensor& q) const {
  return q + spread(content_bias.unsqueeze(1), q.sizes());
}

Tensor DistanceScores::vectors(const Tensor& waves) const {
  return map(waves)
      .view({-1, content_bias.size(0), content_bias.size(1)})
      .transpose(0, 1);
}

Tensor DistanceScores::of_one(const Tensor& q, const Tensor& waves) const {
  const Tensor shifted =
      at_least_float(q) + at_least_float(spread(distance_bias.unsqueeze(1), q.sizes()));
  const Tensor by_head = at_least_float(map.weight).view({q.size(1), q.size(3), -1});
  const Tensor by_wave = longspan::matmul(shifted, by_head);
  return longspan::matmul(by_wave, waves.t()) /
         std::sqrt(static_cast<double>(q.size(3)));
}

Tensor DistanceScores::defined(const Tensor& q, const Tensor& waves) const {
  const Tensor by_head = map.weight.view({q.size(1), q.size(3), -1});
  const Tensor by_wave = (q + distance_bias.unsqueeze(1)).matmul(by_head);
  return torch::einsum("bhif,ijf->bhij", {by_wave, waves}) /
         std::sqrt(static_cast<double>(q.size(3)));
}

Stream last_real(const Stream& rows, int64_t count) {
  const torch::NoGradGuard moving;
  const auto& [x, real, positions] = rows;
  const int64_t length = x.size(1);
  const Tensor number = real.cumsum(1), padding = real.logical_not();
  const Tensor place = torch::where(
      real, number + (length - 1) - number.slice(1, length - 1), padding.cumsum(1) - 1);
  const Tensor order =
      place.argsort(int64_t{1}).slice(1, std::max<int64_t>(length - count, 0));
  const Tensor tokens = real.gather(1, order);
  return {.x = x.gather(1, order.unsqueeze(2).expand({-1, -1, x.size(2)}))
                   .masked_fill(tokens.logical_not().unsqueeze(2), 0),
          .tokens = tokens};
}

Tensor real_tokens(const Tensor& x, const Pass& pass) {
  return pass.mask.tokens.defined()
             ? pass.mask.tokens.to(x.device())
             : torch::ones({x.size(0), x.size(1)}, x.options().dtype(torch::kBool));
}

Stream carried(const Record* record, const std::string& name, const Tensor& x) {
  const Tensor rows = record ? record->get(name) : Tensor();
  if (!rows.defined())
    return {.x = x.detach().slice(1, 0, 0),
            .tokens = torch::ones({x.size(0), 0}, x.options().dtype(torch::kBool))};
  require(rows.dim() == 3 && rows.size(0) == x.size(0) && rows.size(2) == x.size(2),
          "the ", name, " carried from the batch before must be [B, n, E] = [",
          x.size(0), ", n, ", x.size(2), "], got ", shape(rows),
          "; batches that follow each other have the same examples");
  return {.x = rows.to(x.options()),
          .tokens = record->get(name + "_tokens").to(x.device())};
}

void carry(Record& record, const std::string& name, const Stream& rows) {
  record.set(name, rows.x.detach().contiguous());
  record.set(name + "_tokens", rows.tokens.contiguous());
}

RelativeAttention::RelativeAttention(torch::nn::Module& owner, const Sizes& sizes,
                                     Shared& shared, const Options& options)
    : sizes_(sizes), clamp_(options.clamp), waves_(sizes.embedding, 1) {
  const int64_t width = sizes.heads * sizes.head_width;
  const auto linear = [&](const char* name, int64_t out, int64_t in) {
    return make_linear(owner, name, out, in, /*has_bias=*/false);
  };
  q_ = linear("q", width, sizes.embedding);
  k_ = linear("k", sizes.key_heads * sizes.head_width, sizes.embedding);
  v_ = linear("v", sizes.key_heads * sizes.value_width, sizes.embedding);
  out_ = linear("out", sizes.embedding, sizes.heads * sizes.value_width);
  distances_.map = linear("distance", width, waves_.width());
  const auto bias = [&](const std::string& name) {
    const auto make = [&] {
      return torch::randn({sizes.heads, sizes.head_width}) * 0.02;
    };
    return options.tied.empty() ? owner.register_parameter(name, make())
                                : shared.parameter(options.tied + "_" + name, make);
  };
  distances_.content_bias = bias("content_bias");
  distances_.distance_bias = bias("distance_bias");
}

Bias RelativeAttention::bias(const Tensor& q, int64_t keys) {
  const int64_t apart = clamp_ > 0 ? std::min(keys, clamp_ + 1) : keys;
  if (q.size(2) > 1)
    return {.vectors = distances_.vectors(waves_.of(0, apart, q)),
            .offset = distances_.offset()};
  const Tensor waves = waves_.of(0, apart, at_least_float(q));
  const Tensor far = waves.slice(0, apart - 1).expand({keys - apart, -1});
  return {.dense = distances_.of_one(q, torch::cat({waves, far}).flip(0))};
}

Tensor RelativeAttention::forward(const Tensor& x, const Stream& past, int64_t window,
                                  Pass& pass, Tensor* mass) {
  if (x.size(1) == 0) return x;
  Record* const state = pass.state;
  const bool begins = !state || !state->get("k").defined();
  const Tensor all = begins ? torch::cat({past.x, x}, 1) : x;
  Tensor real = real_tokens(x, pass);
  if (begins) real = torch::cat({past.tokens, real}, 1);
  Source source{.k = in_heads(k_(all), sizes_.key_heads),
                .v = in_heads(v_(all), sizes_.key_heads)};
  if (state) {
    source.k = state->grow("k", source.k, 2);
    source.v = state->grow("v", source.v, 2);
    real = state->grow("tokens", real, 1);
    state->tokens += x.size(1);
  }
  const int64_t count = x.size(1), keys = source.k.size(2), before = keys - count;
  if (pass.mask.tokens.defined() || past.x.size(1) > 0 || state)
    source.to = open_where(real);
  const auto near = [=](int64_t query, std::vector<Span>& seen) {
    const int64_t end = before + query + 1;
    seen.push_back({end - window, end});
  };
  source.layout = Layout(count, keys, window > 0 ? Pattern(near) : past_keys(before));
  const Tensor q = in_heads(q_(x), sizes_.heads);
  source.bias = bias(q, keys);
  const Queries queries{.q = distances_.queries(q), .first = before};
  const BlockAttention options{.dropout = dropout_of(pass)};
  const Attended attended = block_attention(queries, {source}, options);
  if (mass) {
    const torch::NoGradGuard looking;
    const Tensor padding = real.slice(1, before).logical_not().unsqueeze(1);
    const Tensor lse = attended.lse.detach().masked_fill(
        padding, std::numeric_limits<float>::infinity());
    *mass =
        longspan::sum_to(column_mass(queries, {source}, lse)[0], {x.size(0), 1, keys})
            .squeeze(1);
  }
  if (state && window > 0) {
    const int64_t kept = std::min(keys, window - 1);
    keep_keys(*state, torch::arange(keys - kept, keys));
  }
  return out_(joined_heads(attended.out));
}

void RelativeAttention::keep_last(Record& state, int64_t count) const {
  const Tensor real = state.get("tokens");
  Stream last;
  for (const char* const name : {"k", "v"}) {
    last = last_real({.x = joined_heads(state.get(name)), .tokens = real}, count);
    state.set(name, in_heads(last.x, sizes_.key_heads));
  }
  state.set("tokens", last.tokens);
}

Tensor RelativeAttention::define(const Tensor& x, const Stream& past, int64_t window,
                                 Pass& pass, Tensor* mass) const {
  const auto heads = [](const Linear& by, const Tensor& y, int64_t count) {
    return in_heads(torch::linear(y, by.weight), count);
  };
  const Tensor all = torch::cat({past.x, x}, 1),
               real = torch::cat({past.tokens, real_tokens(x, pass)}, 1);
  const int64_t keys = all.size(1), before = keys - x.size(1);
  const auto whole = torch::TensorOptions(torch::kLong).device(x.device());
  const Tensor back = torch::arange(before, keys, whole).unsqueeze(1) -
                      torch::arange(keys, whole).unsqueeze(0);
  Tensor visible = back >= 0;
  if (window > 0) visible = visible.logical_and(back < window);
  visible = visible.logical_and(real.unsqueeze(1)).unsqueeze(1);
  const Tensor q = heads(q_, x, sizes_.heads), k = heads(k_, all, sizes_.key_heads);
  Pass biased;
  biased.bias.dense = distances_.defined(
      q, waves_.at((clamp_ > 0 ? back.clamp_max(clamp_) : back).to(torch::kDouble), x));
  const auto found = [&](const Tensor& values) {
    return masked_attention(q + distances_.content_bias.unsqueeze(1), k, values,
                            visible, biased);
  };
  if (mass) {
    const torch::NoGradGuard looking;
    const Tensor each =
        torch::eye(keys, x.options()).expand({x.size(0), sizes_.key_heads, keys, keys});
    *mass = found(each)
                .masked_fill(
                    real.slice(1, before).logical_not().unsqueeze(1).unsqueeze(3), 0)
                .sum({1, 2});
  }
  return torch::linear(joined_heads(found(heads(v_, all, sizes_.key_heads))),
                       out_.weight);
}

Tensor RelativeAttention::by_content(const Tensor& x, const Stream& rows) const {
  const auto heads = [](const Linear& by, const Tensor& y, int64_t count) {
    return in_heads(longspan::linear(y, by.weight.detach(), Tensor()), count);
  };
  const Source source{.k = heads(k_, rows.x, sizes_.key_heads),
                      .v = heads(v_, rows.x, sizes_.key_heads),
                      .to = open_where(rows.tokens)};
  return joined_heads(
      block_attention({.q = heads(q_, x.detach(), sizes_.heads)}, {source}).out);
}

}  // namespace longspan
