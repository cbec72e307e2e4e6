// On which sides of planes points lie, as bits: points near each other share most.

#pragma once

#include <cstdint>

#include <torch/types.h>

namespace longspan {

inline constexpr int64_t kMostPlanes = 63;

// x: [B, H, N, d]; planes: [P, d] or [H, P, d]; offsets: [P] or [H, P], or undefined.
// Returns [B, H, N] int64, whose bit p is set where x . planes[p] + offsets[p] > 0.
//
// Computed in float, double for double, whatever the types; the same bits whatever the
// number of threads. Not differentiable.
torch::Tensor sign_hash(const torch::Tensor& x, const torch::Tensor& planes,
                        const torch::Tensor& offsets = {});

}  // namespace longspan
