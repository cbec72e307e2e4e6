// The attention of the Funnel Transformer: scores of contents and of distances, and
// queries that may be pooled tokens while keys and values are those they were pooled
// from. Dai et al. 2020, arXiv:2006.03236; distances as in Dai et al. 2019,
// arXiv:1901.02860.

#pragma once

#include <memory>
#include <mutex>

#include <torch/types.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"

namespace longspan {

// The sines, then the cosines, of a distance at frequencies 10000^(-a/F), for tokens
// that stand `step` apart. Kept for the longest sequence so far; any thread may ask.
class DistanceWaves {
 public:
  // width: E, of which every two are a frequency.
  DistanceWaves(int64_t width, int64_t step);

  int64_t step() const { return step_; }
  int64_t width() const { return 2 * frequencies_.size(0); }  // W

  // Of distances from * step .. (to - 1) * step: [to - from, W], as `like` is.
  torch::Tensor of(int64_t from, int64_t to, const torch::Tensor& like);

  // Of distances [..] in tokens, double: [.., W], as `like` is.
  torch::Tensor at(const torch::Tensor& distances, const torch::Tensor& like) const;

 private:
  torch::Tensor frequencies_;  // [W/2]
  int64_t step_;
  std::mutex mutex_;
  int64_t reach_ = 0;
  torch::Tensor table_;  // [2 reach + 1, W], of distances -reach .. reach
};

// score = ((q_i + u) . k_j + (q_i + v) . W waves(p_i - p_j)) / sqrt(d).
//
// pass.side, if there is one, are the tokens that x was pooled from, `pool` each: keys
// and values are theirs, and a causal query sees those up to the last it pools. The
// first token, where it is kept apart, has no place: its row and its column have scores
// of contents alone. In causal passes it is a token like the others.
class FunnelAttention final : public Mixer {
 public:
  struct Places {
    std::shared_ptr<DistanceWaves> own = {};
    std::shared_ptr<DistanceWaves> below = {};  // of what x may be pooled from
    int64_t pool = 1;
    bool separate_first = false;
  };

  FunnelAttention(const Sizes& sizes, Places places);

 private:
  // Where queries and keys stand.
  struct Geometry {
    bool causal = false;
    bool apart = false;    // the first token has no place
    int64_t stride = 1;    // keys from one query to the next
    int64_t first = 0;     // query, of those before
    DistanceWaves* waves;  // between keys
  };

  torch::Tensor run(const torch::Tensor& x, Pass& pass) override;
  torch::Tensor define(const torch::Tensor& x, Pass& pass) override;

  Geometry geometry(const Pass& pass) const;
  Bias bias(const Geometry& at, int64_t keys, const torch::Tensor& q) const;
  torch::Tensor scores_of_one(const Geometry& at, int64_t keys,
                              const torch::Tensor& q) const;
  // [H, d, W]
  torch::Tensor distance_weight() const {
    return distance_.weight.view({sizes_.heads, sizes_.head_width, -1});
  }

  Sizes sizes_;
  Places places_;
  Linear q_, k_, v_, out_, distance_;
  torch::Tensor content_bias_, distance_bias_;  // [H, d]: u, v
};

}  // namespace longspan
