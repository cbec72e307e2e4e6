// A Transformer encoder over any mechanism: ids to a vector a token.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "longspan/attention/mechanism.h"
#include "longspan/base/config.h"
#include "longspan/models/block.h"

namespace longspan {

struct EncoderOptions {
  int64_t layers = 4;
  int64_t embedding = 256;
  int64_t heads = 4;
  int64_t key_heads = 0;
  int64_t head_width = 0;
  int64_t inner = 0;
  int64_t longest = 0;
  int64_t global_tokens = 0;
  Value attention = "dense";
  Value by_layer = Value::List{};
  std::string preset = {};
  std::string norm = "pre";
  std::string activation = "gelu";
  std::string positions = "sinusoidal";
  std::string pooling = "cls";
  std::string head = "mlp";
  bool projection_bias = false;
  int64_t rank = 0;
  double norm_epsilon = 1e-6;
  double dropout = 0.1;
  double attention_dropout = 0;
  bool recompute = false;
  bool reversible = false;
};

// The names of the options, without section. See there what each means.
Fields fields(EncoderOptions& options);

class Encoder : public torch::nn::Module {
 public:
  // For ids 0 .. ids - 1 and sequences of at most `longest` tokens. Learned tokens are
  // put in front: one with `cls`, and as many as make it options.global_tokens.
  Encoder(const EncoderOptions& options, int64_t ids, int64_t longest, bool cls);

  // ids: [B, N] integer; tokens: [B, N] bool, false at padding. Returns the vectors
  // [B, N', E] of the tokens in front and of all others, or what a Stack made of them,
  // and their mask, false at padding and at the tokens in front but the one of `cls`.
  Stream forward(const torch::Tensor& ids, const torch::Tensor& tokens, Pass& pass);

  const Sizes& sizes() const { return sizes_; }

 private:
  // A layer is one of the two.
  struct Layer {
    std::shared_ptr<Block> block = nullptr;
    std::shared_ptr<Stack> stack = nullptr;
  };

  void check_reversible(const Mechanism& row) const;
  Layer make_layer(const Mechanism& row, const Value::Map& settings,
                   const Sizes& sizes);
  torch::Tensor embedded(const torch::Tensor& ids, Pass& pass);
  torch::Tensor recomputed(Block& block, int64_t layer, const torch::Tensor& x,
                           Pass& pass);
  torch::Tensor reversed(const torch::Tensor& x, Pass& pass);
  torch::Tensor positions(int64_t count, const torch::Tensor& like);

  EncoderOptions options_;
  Sizes sizes_;
  int64_t longest_ = 0, front_ = 0;  // front_: learned tokens in front
  torch::Tensor embedding_, cls_, global_, positions_;
  std::shared_ptr<Shared> shared_;
  std::vector<Layer> layers_;
  std::shared_ptr<LayerNorm> norm_;  // after the last block, unless it ends in one
};

}  // namespace longspan
