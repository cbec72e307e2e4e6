// How much comes out of gated recurrent caches, for reports.

#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace longspan {

struct MemoryShare {
  std::string name;     // of the `grc` in its model, as "layer0.mixer"
  torch::Tensor share;  // [H]: sigmoid(lambda), the part of a head that is memory
  bool of_heads;  // else of as many groups of channels of what heads make together
};

// Of every `grc` in `module`, in the order of its parts.
std::vector<MemoryShare> memory_shares(const torch::nn::Module& module);

}  // namespace longspan
