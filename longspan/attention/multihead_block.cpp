#include "longspan/attention/multihead_block.h"

#include <algorithm>
#include <cmath>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/prepare.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/total.h"

namespace longspan {

using torch::Tensor;

MultiheadBlock::MultiheadBlock(const Sizes& sizes, const Options& options)
    : sizes_(sizes.completed()) {
  const auto& [embedding, heads, key_heads, width, value_width] =
      std::tie(sizes_.embedding, sizes_.heads, sizes_.key_heads, sizes_.head_width,
               sizes_.value_width);
  scale_ = 1 / std::sqrt(static_cast<double>(width * (options.full_scale ? heads : 1)));
  const int64_t values = heads * value_width;
  const auto linear = [&](const char* name, int64_t out, int64_t in, bool has_bias) {
    return make_linear(*this, name, out, in, has_bias);
  };
  q_ = linear("q", heads * std::max(width, value_width), embedding, true);
  k_ = linear("k", key_heads * width, embedding, true);
  v_ = linear("v", key_heads * value_width, embedding, true);
  inner_ = linear("inner", values, values, true);
  if (values != embedding) out_ = linear("out", embedding, values, false);
  if (!options.norm) return;
  const auto norm = [&](const std::string& name, int64_t size) -> Norm {
    return {register_parameter(name + "_weight", torch::ones(size)),
            register_parameter(name + "_bias", torch::zeros(size))};
  };
  norms_[0] = norm("norm", values);
  norms_[1] = norm("inner_norm", embedding);
}

Tensor MultiheadBlock::forward(const Tensor& x, const Tensor& y, const Tensor& real,
                               const Dropout& dropout) const {
  const auto normed = [](const Tensor& z, const Norm& norm) {
    return norm.weight.defined() ? longspan::layer_norm(z, norm.weight, norm.bias) : z;
  };
  Tensor q = in_heads(q_(x), sizes_.heads);
  q = spread(q, {y.size(0), q.size(1), q.size(2), q.size(3)});
  Source source{.k = in_heads(k_(y), sizes_.key_heads),
                .v = in_heads(v_(y), sizes_.key_heads)};
  if (real.defined()) source.to = open_where(real.to(y.device()));
  const Tensor attended =
      block_attention({.q = q.slice(3, 0, sizes_.head_width)}, {source},
                      {.scale = scale_, .dropout = dropout})
          .out;
  const Tensor o =
      normed(joined_heads(q.slice(3, 0, sizes_.value_width) + attended), norms_[0]);
  const Tensor out =
      o + activate(longspan::linear(o, inner_.weight), inner_.bias, Activation::relu);
  return normed(out_.weight.defined() ? out_(out) : out, norms_[1]);
}

Tensor MultiheadBlock::reference(const Tensor& x, const Tensor& y,
                                 const Tensor& real) const {
  const auto mapped = [](const Linear& by, const Tensor& z) {
    return torch::linear(z, by.weight, by.bias);
  };
  const auto normed = [](const Tensor& z, const Norm& norm) {
    return norm.weight.defined() ? layer_norm_reference(z, norm.weight, norm.bias) : z;
  };
  const int64_t examples = y.size(0), keys = y.size(1);
  const Tensor q =
      in_heads(mapped(q_, x.expand({examples, -1, -1}).contiguous()), sizes_.heads);
  const Tensor seen =
      real.defined() ? real.to(y.device())
                     : torch::ones({examples, keys}, y.options().dtype(torch::kBool));
  const Tensor attended = masked_attention(
      q.slice(3, 0, sizes_.head_width), in_heads(mapped(k_, y), sizes_.key_heads),
      in_heads(mapped(v_, y), sizes_.key_heads),
      seen.view({examples, 1, 1, keys}).expand({-1, -1, x.size(1), -1}), Pass(),
      scale_);
  const Tensor o =
      normed(joined_heads(q.slice(3, 0, sizes_.value_width) + attended), norms_[0]);
  const Tensor out = o + torch::relu(mapped(inner_, o));
  return normed(out_.weight.defined() ? mapped(out_, out) : out, norms_[1]);
}

}  // namespace longspan
