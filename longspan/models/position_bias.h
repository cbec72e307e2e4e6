// Biases of attention scores by distance, in place of positions added to embeddings.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "longspan/kernels/block_attention.h"

namespace longspan {

struct PositionBiasOptions {
  std::string kind = "alibi";  // alibi, t5 or grid
  int64_t heads = 1, layers = 1;
  int64_t longest = 1;  // sequence, of grid
  bool causal = false;  // distances are 0 or more
  // Of t5: the distances below half of the buckets (where tokens see both ways, a
  // quarter) have one each, larger ones share the others by their logarithm up to
  // `reach`, and all beyond are in the last.
  int64_t buckets = 32, reach = 128;
  int64_t width = 0;  // of grid: tokens in a row
};

// alibi: a head's slope times the distance is taken off, slopes of 2^(-8 h / H) for h =
//   1 .. H. Press et al. 2021, arXiv:2108.12409.
// t5: learned numbers by buckets of distances, for all layers the same. Raffel et al.
//   2019, arXiv:1910.10683.
// grid: learned numbers by distances of rows and of columns, every layer its own.
class PositionBias : public torch::nn::Module {
 public:
  static bool has_kind(std::string_view kind);

  explicit PositionBias(const PositionBiasOptions& options);

  // Of a layer whose input is x.
  Bias of(int64_t layer, const torch::Tensor& x);

 private:
  PositionBiasOptions options_;
  torch::Tensor slopes_, buckets_;  // of heads; of distances; where they were last used
  std::vector<torch::Tensor> learned_;
};

}  // namespace longspan
