// A Transformer that says which token stands at a place: the next one, seeing those
// before, or one that was hidden, seeing all others.

#pragma once

#include <memory>

#include "longspan/models/transformer.h"

namespace longspan {

class LanguageModel : public torch::nn::Module {
 public:
  enum class Sees : uint8_t { past, all };

  // For ids 0 .. ids - 1, 0 being padding, and at most `longest` tokens at once.
  LanguageModel(const TransformerOptions& options, int64_t ids, int64_t longest,
                Sees sees);

  // ids: [B, N] integer; mask: [B, N] bool, false at padding, or undefined; kinds: see
  // Batch. Returns vectors [B, N, E] for judge() and log_probabilities(). With
  // pass.state, ids are those of the new tokens.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask, Pass& pass,
                        const torch::Tensor& kinds = {});

  struct Judged {
    torch::Tensor loss = {};   // [B, N]: -log probability of the target; 0 where none
    torch::Tensor right = {};  // [B, N] bool: the target is the most likely token
  };
  // targets: [B, N] int64, -1 where nothing is asked.
  Judged judge(const torch::Tensor& x, const torch::Tensor& targets) const;

  // x: [.., E] -> [.., ids], float also where the model is bfloat16.
  torch::Tensor log_probabilities(const torch::Tensor& x) const;

  Carry carry() const { return transformer_->carry(); }
  bool samples() const { return transformer_->samples(); }
  int64_t ids() const { return ids_; }
  Sees sees() const { return sees_; }
  // How many tokens it was made for at once.
  int64_t longest() const { return longest_; }

 private:
  int64_t ids_, longest_;
  Sees sees_;
  std::shared_ptr<Transformer> transformer_;
};

}  // namespace longspan
