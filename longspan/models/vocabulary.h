// Ids to vectors, and vectors to probabilities of ids.

#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
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
  // likeliest [n], bool. With cutoffs, rare ids cost only where they are the target or
  // might be likelier than it.
  std::pair<torch::Tensor, torch::Tensor> judge(const torch::Tensor& x,
                                                const torch::Tensor& targets) const;

  // x: [.., E] -> [.., ids] float.
  torch::Tensor log_probabilities(const torch::Tensor& x) const;

  torch::Dtype type() const { return in_.front().vectors.scalar_type(); }

 private:
  // Ids first .. first + count - 1.
  struct Band {
    int64_t first = 0;
    torch::Tensor vectors = {};     // [count, w]
    torch::Tensor projection = {};  // [E, w]; undefined: w is E

    int64_t count() const { return vectors.size(0); }
    // [.., w] -> [.., E]
    torch::Tensor widened(const torch::Tensor& x) const;
    // x: [.., E] -> [.., count]
    torch::Tensor scores(const torch::Tensor& x) const;
  };

  std::vector<Band> make_bands(const std::string& name, int64_t ids, int64_t width);
  // The logarithms of the probabilities of the first band's ids, then of the other
  // bands: [.., count + bands - 1].
  torch::Tensor head(const torch::Tensor& x) const;
  std::pair<torch::Tensor, torch::Tensor> judge_bands(
      const torch::Tensor& x, const torch::Tensor& targets) const;

  VocabularyOptions options_;
  std::vector<Band> in_, out_;
  torch::Tensor bias_;   // [ids], without cutoffs
  torch::Tensor bands_;  // [bands - 1, E]: vectors of the bands after the first
};

}  // namespace longspan
