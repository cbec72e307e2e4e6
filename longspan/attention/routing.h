// Tokens in clusters around centroids that follow them in training. Roy et al. 2020,
// arXiv:2003.05997.

#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/chosen.h"
#include "longspan/attention/mechanism.h"

namespace longspan {

// Queries or keys as centroids see them.
struct Routed {
  torch::Tensor x = {};       // [B, h, n, d] normalised, float or double
  torch::Tensor scores = {};  // [B, h, n, C] with every centroid; without gradient
  torch::Tensor real = {};    // [B, n] bool; undefined: all
};

inline constexpr Setting kClusters = {
    .name = "clusters", .standard = "16", .help = "centroids of a head, C", .least = 1};
inline constexpr Setting kDecay = {
    .name = "decay",
    .kind = Kind::number,
    .standard = "0.999",
    .help = "of the means that centroids are, a training pass",
    .least = 0};
inline constexpr Setting kCommitment = {
    .name = "commitment",
    .kind = Kind::number,
    .standard = "0.0001",
    .help = "weight of the loss that draws what is routed to its centroid",
    .least = 0};

// Moving means of what is routed to each, for every head of keys.
class Centroids {
 public:
  // By the settings above; the means are buffers of `owner`.
  Centroids(torch::nn::Module& owner, const Settings& settings, const Sizes& sizes);

  int64_t count() const { return sums_.size(1); }

  // [Hk, C, d], float: those of this pass.
  torch::Tensor of(Pass& pass) const;

  // x: [B, h, n, d], h a multiple of Hk; real: [B, n] bool, undefined: all.
  static Routed routed(const torch::Tensor& x, const torch::Tensor& real,
                       const torch::Tensor& centroids);

  // [B, h, n]: the centroid with the largest score, C for padding.
  static torch::Tensor nearest(const Routed& routed);

  // In training: adds the loss "routing_commitment" and moves the means.
  void learn(Pass& pass, const torch::Tensor& centroids,
             const std::vector<Routed>& all);

 private:
  double decay_, commitment_;
  // The bits of floats, [Hk, C] and [Hk, C, d]: in bfloat16, which a model may be
  // converted to, a moving mean would stand still.
  torch::Tensor counts_, sums_;
};

// Tokens in the order of their clusters, those of a cluster in the order of time.
struct ByCluster {
  torch::Tensor order;    // [B, h, n]: the token at each place
  torch::Tensor cluster;  // [B, h, n]: of each place, ascending

  ByCluster() = default;
  // cluster: [B, h, n], of tokens
  explicit ByCluster(const torch::Tensor& cluster);

  // Of heads of keys for `heads` heads of queries.
  ByCluster for_queries(int64_t heads) const;

  // x [B, h, n] or [B, h, n, w] of tokens by places.
  torch::Tensor placed(const torch::Tensor& x) const;
  // x [B, h, n] or [B, h, n, w] of places by tokens.
  torch::Tensor of_tokens(const torch::Tensor& x) const;
  // Of integers [B, h, n] that of the place `by` further on, `none` where that is
  // another cluster's.
  torch::Tensor further(const torch::Tensor& x, int64_t by, int64_t none) const;
};

// Of rows with centroids.
inline constexpr std::string_view kMovingCentroids =
    "2, 4: centroids move after a pass, by all its tokens and examples, and change the "
    "passes after it";

}  // namespace longspan
