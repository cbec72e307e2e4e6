// entmax_attention() on the CPU kernels, without autograd.

#pragma once

#include <functional>

#include "longspan/kernels/attention_call.h"

namespace longspan {

struct EntmaxAttended {
  torch::Tensor out = {};     // [B, H, N, dv], in the type that is computed in
  torch::Tensor levels = {};  // [B, H, N, 2]: see cpu/entmax.h
};

EntmaxAttended entmax_cpu(const AttentionCall& call, const AttentionSizes& sizes,
                          const torch::Tensor& alpha);

// In the type that is computed in.
struct EntmaxSlopes {
  torch::Tensor q = {}, k = {}, v = {};
  torch::Tensor alpha = {};  // [H] double; undefined where not wanted
};

// Takes the slopes [B, H, end - first, M] of the scores of queries first .. end - 1.
using TakeScores =
    std::function<void(int64_t first, int64_t end, const torch::Tensor& slopes)>;

// `take_scores` may be empty.
EntmaxSlopes entmax_gradient_cpu(const AttentionCall& call, const AttentionSizes& sizes,
                                 const torch::Tensor& alpha,
                                 const torch::Tensor& levels,
                                 const torch::Tensor& out_slope, bool wants_alpha,
                                 const TakeScores& take_scores);

}  // namespace longspan
