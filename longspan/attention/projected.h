// An Attention between its projections: the one place where they are made.

#pragma once

#include <memory>

#include <torch/types.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"

namespace longspan {

struct ProjectionOptions {
  bool bias = false;  // of all projections, 0 at first
  int64_t rank = 0;   // of all projections; 0: full
};

// Queries from x, keys and values from x or from pass.context, mixed by `attention`,
// and projected back to E. Weights are Xavier-uniform. Which projections there are is
// said by the row of `attention`: all of q, k, v, once or once more for global tokens;
// one for queries and keys; values only.
class Projected final : public Mixer {
 public:
  Projected(std::shared_ptr<Attention> attention, const Sizes& sizes,
            const ProjectionOptions& options = {});

  const Attention& attention() const { return *attention_; }

  // The two halves of forward() and reference(), for mixers that change what is between
  // them: what the attention gives, [B, H, N, dv], and the way back to [B, N, E].
  torch::Tensor attended(const torch::Tensor& x, Pass& pass);
  torch::Tensor attended_reference(const torch::Tensor& x, Pass& pass);
  torch::Tensor projected_back(const torch::Tensor& heads) const;

 private:
  torch::Tensor run(const torch::Tensor& x, Pass& pass) override;
  torch::Tensor define(const torch::Tensor& x, Pass& pass) override;

  Linear copied(const std::string& name, const Linear& from);
  bool projects_together(const torch::Tensor& x, const Pass& pass) const;
  Heads heads(const torch::Tensor& x, Pass& pass);
  Heads turned(Heads heads, Pass& pass) const;  // by pass.rotary

  Sizes sizes_;
  ProjectionOptions options_;
  std::shared_ptr<Attention> attention_;
  Linear q_, k_, v_, out_;
  Linear global_q_, global_k_, global_v_;
};

// The mechanism as a Mixer, whether it is one or needs projections. One that is has
// projections of full rank.
std::shared_ptr<Mixer> make_mixer(const Mechanism& mechanism, const Sizes& sizes,
                                  const Value::Map& settings = {},
                                  const std::shared_ptr<Shared>& shared = nullptr,
                                  const ProjectionOptions& options = {});

}  // namespace longspan
