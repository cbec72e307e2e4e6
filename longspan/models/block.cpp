#include "longspan/models/block.h"

#include <torch/nn/init.h>

#include "longspan/base/error.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/matmul.h"

namespace longspan {
namespace {

thread_local int64_t blocks = 0;  // run so far

}  // namespace

using torch::Tensor;

LayerNorm::LayerNorm(int64_t width, double epsilon) : epsilon_(epsilon) {
  weight_ = register_parameter("weight", torch::ones(width));
  bias_ = register_parameter("bias", torch::zeros(width));
}

Tensor LayerNorm::forward(const Tensor& x) const {
  return longspan::layer_norm(x, weight_, bias_, epsilon_);
}

Block::Block(std::shared_ptr<Mixer> mixer, const Sizes& sizes,
             const BlockOptions& options)
    : options_(options) {
  mixer_ = register_module("mixer", std::move(mixer));
  const auto& [row, keeps] = std::tie(mixer_->mechanism(), mixer_->mechanism().keeps);
  change(options.activation, options.dropout, options.attention_dropout);
  const int64_t embedding = sizes.embedding, inner = sizes.inner;
  const char* const names[] = {"mixer", "feed_forward"};
  for (int part = 0; part < 2; ++part) {
    if (part == 0 ? !keeps.norm : !keeps.feed_forward) continue;
    const auto make = [&](const std::string& name) {
      return register_module(
          name, std::make_shared<LayerNorm>(embedding, options.norm_epsilon));
    };
    norms_[part] = make(names[part] + std::string("_norm"));
    if (options.norm == Norm::sandwich)
      behind_[part] = make(names[part] + std::string("_norm_behind"));
  }
  if (!keeps.feed_forward) return;
  in_ = make_linear(*this, "in", inner, embedding, /*has_bias=*/true, options.rank);
  out_ = make_linear(*this, "out", embedding, inner, /*has_bias=*/true, options.rank);
  for (const Tensor& bias : {in_.bias, out_.bias})
    torch::nn::init::normal_(bias, 0, 1e-6);
}

void Block::change(Activation activation, double dropout, double attention_dropout) {
  require(attention_dropout == 0 || mixer_->can().dropout, mechanism().name,
          ": drops no attention weights, so attention_dropout must be 0, got ",
          attention_dropout);
  options_.activation = activation;
  options_.dropout = dropout;
  options_.attention_dropout = attention_dropout;
}

Tensor Block::dropped(const Tensor& x, Pass& pass) const {
  const Key key = pass.draw.key();
  return pass.training && options_.dropout > 0 ? dropout(x, options_.dropout, key) : x;
}

Tensor Block::mixer_input(const Tensor& x) const {
  return norms_[0] && options_.norm != Norm::post ? norms_[0]->forward(x) : x;
}

template <class Work>
Tensor Block::around(const Tensor& x, int64_t part, bool residual, bool norm,
                     Pass& pass, Work f) {
  const bool before = norm && options_.norm != Norm::post;
  Tensor y = f(before ? norms_[part]->forward(x) : x);
  if (behind_[part]) y = behind_[part]->forward(y);
  // What has a residual of its own is not dropped as a whole.
  if (part == 1 || mechanism().keeps.residual) y = dropped(y, pass);
  if (residual) y = x + y;
  return norm && options_.norm == Norm::post ? norms_[part]->forward(y) : y;
}

Tensor Block::feed_forward(const Tensor& x, Pass& pass) {
  const Linear in{.weight = in_.weight, .down = in_.down};  // the bias comes after
  const Tensor inner = activate(in(x), in_.bias, options_.activation);
  return out_(dropped(inner, pass));
}

Tensor Block::fed(const Tensor& x, bool residual, Pass& pass) {
  return around(x, 1, residual, /*norm=*/true, pass,
                [&](const Tensor& in) { return feed_forward(in, pass); });
}

template <class Mix>
Tensor Block::mixed(const Tensor& x, bool residual, Pass& pass, Mix mix) {
  pass.dropout = pass.training ? options_.attention_dropout : 0;
  return around(x, 0, residual, mechanism().keeps.norm, pass, mix);
}

template <class Mix>
Tensor Block::through(const Tensor& x, Pass& pass, Mix mix) {
  const Keeps keeps = mechanism().keeps;
  const Tensor y = mixed(x, keeps.residual, pass, mix);
  return keeps.feed_forward ? fed(y, /*residual=*/true, pass) : y;
}

Tensor Block::mixed(const Tensor& x, Pass& pass) {
  TORCH_INTERNAL_ASSERT(options_.norm != Norm::post && mechanism().keeps.residual);
  return mixed(x, /*residual=*/false, pass,
               [&](const Tensor& in) { return mixer_->forward(in, pass); });
}

Tensor Block::fed(const Tensor& x, Pass& pass) {
  TORCH_INTERNAL_ASSERT(options_.norm != Norm::post && mechanism().keeps.feed_forward);
  return fed(x, /*residual=*/false, pass);
}

int64_t blocks_run() { return blocks; }

Tensor Block::forward(const Tensor& x, Pass& pass) {
  ++blocks;
  return through(x, pass, [&](const Tensor& in) { return mixer_->forward(in, pass); });
}

Tensor Block::reference(const Tensor& x, Pass& pass) {
  return through(x, pass,
                 [&](const Tensor& in) { return mixer_->reference(in, pass); });
}

}  // namespace longspan
