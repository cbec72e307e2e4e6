// Hashes that points near each other are likely to share.

#pragma once

#include <cstdint>

#include <torch/types.h>

namespace longspan {

inline constexpr int64_t kMostPlanes = 63;

// On which sides of planes points lie, as bits.
//
// x: [B, H, N, d]; planes: [P, d] or [H, P, d]; offsets: [P] or [H, P], or undefined.
// Returns [B, H, N] int64, whose bit p is set where x . planes[p] + offsets[p] > 0.
//
// Computed in float, double for double, whatever the types; the same bits whatever the
// number of threads. Not differentiable.
torch::Tensor sign_hash(const torch::Tensor& x, const torch::Tensor& planes,
                        const torch::Tensor& offsets = {});

// Which of several directions, or their opposites, points lie nearest to, in each of R
// rounds (the cross-polytope hash of Andoni et al. 2015, arXiv:1509.02897).
//
// x: [B, H, N, d]; rotations: [H|1, d, R, C]. With y = x . rotations [.., r, :], an
// example has the first `buckets[b]` / 2 of the C directions, all of them where buckets
// [B] is undefined, and its hash is the place of the largest of y_0, y_1, .., -y_0,
// -y_1, .., the first among equals; 0 without directions. Returns [B, H, R, N] int64.
//
// Types, threads and gradients as for sign_hash().
torch::Tensor cross_polytope_hash(const torch::Tensor& x,
                                  const torch::Tensor& rotations,
                                  const torch::Tensor& buckets = {});

}  // namespace longspan
