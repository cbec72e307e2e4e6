// Ids to vectors, and vectors to probabilities of ids.

#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace longspan {

struct VocabularyOptions {
  bool predicts = false;  // also says which id a vector means
  bool tied = true;       // by the same weights as the embedding
  // Not empty: ids stand in the order of their frequency, and those from each of these
  // numbers on share `divisor` times narrower vectors (Baevski and Auli 2019,
  // arXiv:1809.10853; Grave et al. 2017, arXiv:1609.04309).
  std::vector<int64_t> cutoffs = {};
  int64_t divisor = 4;
};

class Vocabulary : public torch::nn::Module {
 public:
  Vocabulary(int64_t ids, int64_t width, const VocabularyOptions& options);

  // ids: [..] integer -> [.., E], float at least.
  torch::Tensor embedded(const torch::Tensor& ids) const;

  // x: [n, E]; targets: [n] int64, -1 where nothing is asked. Returns the negative
  // log-probabilities [n], float, 0 where nothing is asked, and where the target is the
  // likeliest [n], bool.
  std::pair<torch::Tensor, torch::Tensor> judge(const torch::Tensor& x,
                                                const torch::Tensor& targets) const;

  // x: [.., E] -> [.., ids] float.
  torch::Tensor log_probabilities(const torch::Tensor& x) const;

  torch::Dtype type() const { return embedding_.scalar_type(); }

 private:
  VocabularyOptions options_;
  torch::Tensor embedding_, bias_;
};

}  // namespace longspan
