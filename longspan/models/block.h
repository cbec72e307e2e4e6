// One layer of a Transformer: a mixer of tokens, then a feed-forward, each with its
// norm and its residual.

#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/kernels/activation.h"

namespace longspan {

// Where the norms of a block stand, for a part f (the mixer, the feed-forward):
//   pre:      x + f(norm(x))
//   post:     norm(x + f(x))
//   sandwich: x + norm(f(norm(x)))
enum class Norm { pre, post, sandwich };

struct BlockOptions {
  Norm norm = Norm::pre;
  Activation activation = Activation::gelu;
  double dropout = 0;
  double attention_dropout = 0;
  double norm_epsilon = 1e-6;
  int64_t rank = 0;  // of the feed-forward's maps; 0: full
};

// The scale and shift of layer_norm().
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t width, double epsilon);
  torch::Tensor forward(const torch::Tensor& x) const;

 private:
  torch::Tensor weight_, bias_;
  double epsilon_;
};

// How often the calling thread called Block::forward() so far.
int64_t blocks_run();

class Block : public torch::nn::Module {
 public:
  Block(std::shared_ptr<Mixer> mixer, const Sizes& sizes, const BlockOptions& options);

  // x: [B, N, E] -> [B, N, E]. The caller has entered the layer in pass.draw.
  torch::Tensor forward(const torch::Tensor& x, Pass& pass);
  // Without post-norm, what the mixer, and then the feed-forward, adds to x: forward()
  // is y = x + mixed(x), y + fed(y).
  torch::Tensor mixed(const torch::Tensor& x, Pass& pass);
  torch::Tensor fed(const torch::Tensor& x, Pass& pass);
  // The same as forward() with the mixer by its definition.
  torch::Tensor reference(const torch::Tensor& x, Pass& pass);

  // What the mixer is given of x: for tokens beside the layer's own that it should see
  // alike.
  torch::Tensor mixer_input(const torch::Tensor& x) const;

  const Mechanism& mechanism() const { return mixer_->mechanism(); }

  // For blocks that a Stack made: drops so much, and has this activation.
  void change(Activation activation, double dropout, double attention_dropout);

 private:
  template <class Mix>
  torch::Tensor mixed(const torch::Tensor& x, bool residual, Pass& pass, Mix mix);
  torch::Tensor fed(const torch::Tensor& x, bool residual, Pass& pass);
  template <class Mix>
  torch::Tensor through(const torch::Tensor& x, Pass& pass, Mix mix);
  // f with norms and residual around it, as far as the block has them.
  template <class Work>
  torch::Tensor around(const torch::Tensor& x, int64_t part, bool residual, bool norm,
                       Pass& pass, Work f);
  torch::Tensor feed_forward(const torch::Tensor& x, Pass& pass);
  torch::Tensor dropped(const torch::Tensor& x, Pass& pass) const;

  BlockOptions options_;
  std::shared_ptr<Mixer> mixer_;
  // Before (or, post-norm, after) the mixer and the feed-forward; behind them in a
  // sandwich.
  std::shared_ptr<LayerNorm> norms_[2], behind_[2];
  Linear in_, out_;
};

}  // namespace longspan
