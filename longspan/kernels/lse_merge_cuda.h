// Merging attention on CUDA without autograd.

#pragma once

#include <vector>

#include <torch/types.h>

#include "longspan/kernels/lse_merge.h"

namespace longspan {

// At most cuda::kMostParts.
Attended merge_cuda(const std::vector<Attended>& parts);

struct MergeWanted {
  bool out, lse;
};

// The slopes of the parts from those of the result; undefined where not wanted. Those
// of lse in float, double for double.
std::vector<Attended> merge_gradient_cuda(const std::vector<Attended>& parts,
                                          const Attended& slopes,
                                          const std::vector<MergeWanted>& wanted);

}  // namespace longspan
