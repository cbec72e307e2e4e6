// Rows in clusters.

#pragma once

#include <cstdint>

#include <torch/types.h>

namespace longspan {

inline constexpr int64_t kMostClusters = 1 << 16;

// K-means over bits, which differ as much as their number of unlike bits (Lloyd's
// algorithm).
//
// codes: [B, H, N] int64; keep: [B, N] bool, the rows that count, undefined: all. Of n
// rows that count, min(clusters, n) begin as the centroids: those of rank floor(c * n /
// min(clusters, n)). In each of `rounds` rounds every row goes to the nearest centroid,
// among equals to the first, and then a centroid gets each bit that at least half of
// its rows have; one without rows stays as it is. Returns [B, H, N] int64, the cluster
// of each row in the last round, -1 where it does not count.
//
// The rows that do not count change nothing, nor does their number; nor does the number
// of threads. On CUDA it runs as the reference does.
torch::Tensor hamming_clusters(const torch::Tensor& codes, const torch::Tensor& keep,
                               int64_t clusters, int64_t rounds);

// The same in tensor operations, O(N * clusters) memory.
torch::Tensor hamming_clusters_reference(const torch::Tensor& codes,
                                         const torch::Tensor& keep, int64_t clusters,
                                         int64_t rounds);

}  // namespace longspan
