// Queries and keys turned by angles of their positions, so that scores depend on
// distances. Su et al. 2021, arXiv:2104.09864.

#pragma once

#include <torch/types.h>

#include "longspan/attention/mechanism.h"

namespace longspan {

// Whether a mechanism's projections, or those inside it, can turn queries and keys:
// whether it honours pass.rotary. `can`: with its settings.
bool can_turn(const Mechanism& row, const Abilities& can);

// x: [B, H, N, d], d even; positions: [N] or [B, N] integer. Numbers a and a + d/2 of a
// head are turned by position * base^(-2a/d).
torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& positions,
                      double base);

}  // namespace longspan
