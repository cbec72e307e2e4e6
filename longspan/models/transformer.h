// A Transformer over any mechanism: ids to a vector a token, which sees all others or
// only those before it.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "longspan/attention/mechanism.h"
#include "longspan/base/config.h"
#include "longspan/models/block.h"
#include "longspan/models/position_bias.h"
#include "longspan/models/vocabulary.h"

namespace longspan {

struct TransformerOptions {
  int64_t layers = 4;
  int64_t embedding = 256;
  int64_t heads = 4;
  int64_t key_heads = 0;
  int64_t head_width = 0;
  int64_t inner = 0;
  int64_t longest = 0;
  int64_t global_tokens = 0;
  int64_t memory_tokens = 0;
  bool recurrent_memory = false;
  int64_t segment = 0;
  Value attention = "dense";
  Value by_layer = Value::List{};
  std::string preset = {};
  std::string norm = "pre";
  std::string activation = "gelu";
  std::string positions = "sinusoidal";
  double rotary_base = 10000;
  int64_t t5_buckets = 32;
  int64_t t5_reach = 128;
  int64_t grid_width = 0;
  bool tied = true;
  Value cutoffs = Value::List{};
  int64_t divisor = 4;
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
Fields fields(TransformerOptions& options);

// Whether a layer draws the keys it meets where pass.sampling is set.
bool draws_keys(const TransformerOptions& options);

class Transformer : public torch::nn::Module {
 public:
  struct Inputs {
    int64_t ids = 0;  // 0 .. ids - 1
    int64_t longest = 0;
    bool cls = false;       // a learned token is put in front
    bool causal = false;    // a token sees those before it and itself
    bool predicts = false;  // its vocabulary() says which ids vectors mean
  };

  // Beside the one of `cls`, learned tokens are put in front to make it
  // options.global_tokens; then come options.memory_tokens.
  Transformer(const TransformerOptions& options, const Inputs& inputs);

  // ids: [B, N] integer; mask: [B, N] bool, false at padding, or undefined; kinds:
  // [B, N] 0 or 1, of texts in pairs, or undefined. Positions that are added to
  // embeddings count from the beginning of every segment of pass.mask. Returns the
  // vectors [B, N', E] of the tokens in front and of all others, or what a Stack made
  // of them, and their mask, false at padding and at the tokens in front but the one of
  // `cls`. With pass.state, ids are those of the new tokens.
  Stream forward(const torch::Tensor& ids, const torch::Tensor& mask, Pass& pass,
                 const torch::Tensor& kinds = {});

  const Sizes& sizes() const { return sizes_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // What its layers keep from batch to batch.
  Carry carry() const { return carry_; }
  bool samples() const { return draws_keys(options_); }

 private:
  // A layer is one of the two.
  struct Layer {
    std::shared_ptr<Block> block = nullptr;
    std::shared_ptr<Stack> stack = nullptr;
  };

  void check_reversible(const Mechanism& row) const;
  void check_positions(const Mechanism& row, const Abilities& can) const;
  // Before a layer: how it is told of positions.
  void tell_positions(Pass& pass, int64_t layer, const torch::Tensor& x);
  Layer make_layer(const Mechanism& row, const Value::Map& settings,
                   const Sizes& sizes);
  void check_memory() const;
  void check_memory(const Mechanism& row) const;
  void note_carry(const Mechanism& row, Carry carry);
  std::vector<torch::Tensor> shared_parameters() const;
  torch::Tensor embedded(const torch::Tensor& ids, const torch::Tensor& kinds,
                         Pass& pass);
  // [B, N, E], without positions, float at least.
  torch::Tensor embedded(const torch::Tensor& ids, const torch::Tensor& kinds) const;
  // x [B, n, E] at positions first .., as the first layer takes it.
  torch::Tensor placed(const torch::Tensor& x, int64_t first, Pass& pass);
  torch::Tensor with_front(const torch::Tensor& x) const;
  // Changes `kept`, the mask of what is returned, where a Stack does.
  torch::Tensor through_layers(torch::Tensor x, torch::Tensor& kept, Pass& pass);
  Stream in_segments(const torch::Tensor& x, const torch::Tensor& tokens, Pass& pass);
  torch::Tensor recomputed(Block& block, int64_t layer, const torch::Tensor& x,
                           Pass& pass);
  torch::Tensor reversed(const torch::Tensor& x, Pass& pass);
  torch::Tensor positions(int64_t first, int64_t count, const torch::Tensor& like);

  TransformerOptions options_;
  Inputs inputs_;
  Sizes sizes_;
  Carry carry_ = Carry::none;
  int64_t longest_ = 0;  // of what layers are given
  int64_t front_ = 0;    // learned tokens in front
  int64_t segment_ = 0;  // 0: the memory does not recur
  std::shared_ptr<Vocabulary> vocabulary_;
  std::shared_ptr<PositionBias> position_bias_;
  torch::Tensor cls_, global_, memory_, positions_, kinds_;
  std::shared_ptr<Shared> shared_;
  std::vector<Layer> layers_;
  std::shared_ptr<LayerNorm> norm_;  // after the last block, unless it ends in one
};

}  // namespace longspan
