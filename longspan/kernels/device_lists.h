// What the tiles of a call visit, in device memory, for the CUDA kernels. Made once for
// a combination of layouts and kept.

#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include "longspan/kernels/attention_call.h"
#include "longspan/kernels/cuda/attention.h"

namespace longspan {

// Lists cut into pieces. A list that is much longer than the others, or that would
// leave most of a card idle, is cut; the rule asks nothing of the card.
struct CutLists {
  std::vector<cuda::Piece> pieces;  // the longest first
  std::vector<cuda::Cut> cuts;
  int32_t parts = 0;
};

// `lengths`: of the list of every tile; `heads`: how many heads have such lists.
CutLists cut_lists(const std::vector<int64_t>& lengths, int64_t heads);

struct DeviceLists {
  struct OfSource {
    cuda::Tiles tiles = {};
    cuda::Pieces columns = {};  // pieces of tiles of keys
  };

  cuda::Pieces rows = {};  // pieces of tiles of queries
  std::vector<OfSource> sources = {};
  torch::Tensor memory = {};  // that the pointers are into
};

std::shared_ptr<const DeviceLists> device_lists(const AttentionCall& call,
                                                const AttentionSizes& sizes);

}  // namespace longspan
