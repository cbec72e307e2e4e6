// Logits made into weights whose rows and whose columns sum to 1, by normalising rows
// and columns in turn (Sinkhorn and Knopp 1967). In log space, so that logits may be of
// any size.

#pragma once

#include <cstdint>

#include <torch/types.h>

namespace longspan {

struct Balancing {
  int64_t iterations = 5;  // each first over rows, then over columns
  bool rows_last = false;  // once more over rows
};

// logits: [.., n, m]; minus infinity is a pair that is not there, its weight 0, and
// rows and columns without a pair do not count. Returns the weights, float, or double
// for double logits. After the last normalisation its axis sums to 1 but for rounding,
// the other the better the more iterations. A square of weights that are balanced stays
// as it is.
//
// Differentiable once; the gradient takes the steps again and keeps none of them. All
// results are the same bits whatever the number of threads.
torch::Tensor balanced(const torch::Tensor& logits, const Balancing& how = {});

struct BalancedRows {
  torch::Tensor weights = {};  // [.., n, m]
  // [.., iterations, m]: by iteration, log of the sum of every column over the rows so
  // far, as it was to be normalised.
  torch::Tensor columns = {};
};

// The same row after row: a column is normalised in each row by its sum over this and
// earlier rows, so no row depends on a later one. `columns` are those of earlier rows;
// undefined: there are none. Rows may come in any pieces. With many iterations only the
// first pair of every column keeps a weight: what its row took is gone for later rows.
//
// O(iterations * n * m) memory while it works. Differentiable in logits and columns, in
// all else as above.
BalancedRows balanced_onward(const torch::Tensor& logits, const torch::Tensor& columns,
                             const Balancing& how = {});

}  // namespace longspan
