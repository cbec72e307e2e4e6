// Queries and keys turned by angles of their positions, so that scores depend on
// distances. Su et al. 2021, arXiv:2104.09864.

#pragma once

#include <torch/types.h>

namespace longspan {

// x: [B, H, N, d], d even; positions: [N] or [B, N] integer. Numbers a and a + d/2 of a
// head are turned by position * base^(-2a/d).
torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& positions,
                      double base);

}  // namespace longspan
