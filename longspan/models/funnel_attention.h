// The attention of the Funnel Transformer: scores of contents and of distances, and
// queries that may be pooled tokens while keys and values are those they were pooled
// from. Dai et al. 2020, arXiv:2006.03236; distances as in Dai et al. 2019,
// arXiv:1901.02860.

#pragma once

#include <memory>

#include <torch/types.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/relative_attention.h"

namespace longspan {

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

  Sizes sizes_;
  Places places_;
  Linear q_, k_, v_, out_;
  DistanceScores distances_;
};

}  // namespace longspan
