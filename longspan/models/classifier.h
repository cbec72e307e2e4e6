// An encoder that says which of several classes a sequence, or a pair of them, belongs
// to.

#pragma once

#include <memory>

#include "longspan/attention/multihead_block.h"
#include "longspan/models/transformer.h"

namespace longspan {

class Classifier : public torch::nn::Module {
 public:
  enum class Reads : uint8_t { texts, pairs };

  // For ids 0 .. ids - 1, at most `longest` tokens, and `classes` classes.
  Classifier(const TransformerOptions& options, int64_t ids, int64_t longest,
             int64_t classes, Reads reads = Reads::texts);

  // ids: [B, N] integer, of pairs [2 B, N], the first ones before the second ones;
  // mask: the same bool, false at padding, or undefined. Returns [B, classes], float
  // also where the model is bfloat16.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask,
                        Pass& pass);

  Carry carry() const { return encoder_->carry(); }
  bool samples() const { return encoder_->samples(); }

 private:
  // [B, E], of the tokens that count.
  torch::Tensor pooled(const Stream& tokens) const;

  // What the head makes of two texts: [2 B, E] -> [B, ..].
  torch::Tensor joined(const torch::Tensor& x) const;

  bool mean_;  // pooling
  bool pairs_, interaction_;
  std::shared_ptr<Transformer> encoder_;
  // Pooling by attention, with one seed: Lee et al. 2019, arXiv:1810.00825.
  std::shared_ptr<MultiheadBlock> pool_;
  torch::Tensor seed_;  // [1, 1, E]
  // Of a head with two layers, and of one with three.
  torch::Tensor hidden_weight_, hidden_bias_, second_weight_, second_bias_;
  torch::Tensor out_weight_, out_bias_;
};

int64_t parameter_count(const torch::nn::Module& module);

}  // namespace longspan
