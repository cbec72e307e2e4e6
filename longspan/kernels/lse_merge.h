// What softmax attention gives, and how results over separate keys become one.

#pragma once

#include <vector>

#include <torch/types.h>

namespace longspan {

struct Attended {
  torch::Tensor out = {};  // [B, H, N, dv]
  // [B, H, N]: log of the sum of exp(score) over the keys a query sees; float, double
  // for double inputs. Minus infinity, and out 0, where it sees none.
  torch::Tensor lse = {};
};

// The attention over all keys, from the attention over each part of them (mechanisms
// with several sources, rounds or splits). A key that is in two parts counts twice. A
// part without weight in a row does not count there, whatever it holds, also NaN.
// Differentiable in out and lse of every part and of the result, once.
//
// One pass each way, on CUDA for every 16 parts; bfloat16 and half are computed in
// float, and all results are the same bits in every run, whatever the number of
// threads.
Attended merge(const std::vector<Attended>& parts);

// The same in plain tensor operations: what the fused path must equal.
Attended merge_reference(const std::vector<Attended>& parts);

}  // namespace longspan
