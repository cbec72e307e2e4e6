// Which keys the arguments of an operator show, as a layout.

#pragma once

#include <optional>
#include <vector>

#include <torch/types.h>

#include "longspan/kernels/layout.h"

namespace longspan::ops {

// A query sees the keys that all of these show. The last query stands where the last
// key does.
struct VisibleKeys {
  bool causal = false;
  std::optional<std::vector<int64_t>> window = {};  // before, after, maybe dilation
  // [N, S, 2]: from and to of the S spans of each query; [H, N, S, 2]: other ones for
  // every head. `span_queries` consecutive queries share theirs: then there are so many
  // times fewer, rounded up, than N.
  torch::Tensor spans = {};
  int64_t span_queries = 1;

  // Throws unless everything fits.
  void check(int64_t queries, int64_t keys) const;

  // None where every query sees every key. The layouts of the last calls are kept for
  // the next.
  std::optional<Layout> layout(int64_t queries, int64_t keys) const;
};

}  // namespace longspan::ops
