// An encoder that says which of several classes a sequence belongs to.

#pragma once

#include <memory>

#include "longspan/attention/multihead_block.h"
#include "longspan/models/transformer.h"

namespace longspan {

class Classifier : public torch::nn::Module {
 public:
  // For ids 0 .. ids - 1, at most `longest` tokens, and `classes` classes.
  Classifier(const TransformerOptions& options, int64_t ids, int64_t longest,
             int64_t classes);

  // ids: [B, N] integer; tokens: [B, N] bool, false at padding. Returns [B, classes],
  // float also where the model is bfloat16.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& tokens,
                        Pass& pass);

  Carry carry() const { return encoder_->carry(); }

 private:
  // [B, E], of the tokens that count.
  torch::Tensor pooled(const Stream& tokens) const;

  bool mean_;  // pooling
  std::shared_ptr<Transformer> encoder_;
  // Pooling by attention, with one seed: Lee et al. 2019, arXiv:1810.00825.
  std::shared_ptr<MultiheadBlock> pool_;
  torch::Tensor seed_;                         // [1, 1, E]
  torch::Tensor hidden_weight_, hidden_bias_;  // of a head with two layers
  torch::Tensor out_weight_, out_bias_;
};

int64_t parameter_count(const torch::nn::Module& module);

}  // namespace longspan
