// Pooling on the CPU without autograd: how rows and columns are shared out to the
// vector code.

#pragma once

#include <cstdint>

#include <torch/types.h>

#include "longspan/kernels/pool.h"

namespace longspan {

// Spans, [G, 2], or prefixes of segments of some length, [1]; on the CPU.
struct PoolWhere {
  torch::Tensor tensor;

  bool is_spans() const { return tensor.dim() == 2; }
  int64_t segment() const { return tensor.item<int64_t>(); }
};

// What the poolings by weights give, in the type that is computed in: see cpu/pool.h.
struct Weighed {
  torch::Tensor out;        // [B, H, G, d]
  torch::Tensor factor;     // [B, H, G]
  torch::Tensor base, lse;  // [B, H, G], only with scores
};

// With scores if there are any; `divided` by the sum of the weights.
Weighed pool_by_weights_cpu(const PoolInputs& inputs, const PoolWhere& where,
                            bool divided);

struct WeighedSlopes {
  torch::Tensor out;  // [B, H, G, d]
  torch::Tensor lse;  // [B, H, G], only with scores
};

struct PoolWanted {
  bool x, scores;
};

// In the type that is computed in; undefined where not wanted.
struct PoolGradients {
  torch::Tensor x, scores;
};

// `inputs` of `tokens` tokens; without scores x may be undefined, and `result` may have
// no out.
PoolGradients pool_by_weights_gradient_cpu(const PoolInputs& inputs, int64_t tokens,
                                           const PoolWhere& where,
                                           const Weighed& result,
                                           const WeighedSlopes& slopes,
                                           PoolWanted wanted);

// In the type that is computed in.
struct Largest {
  torch::Tensor out = {};  // [B, H, G, d]
  // Of spans, if wanted: [B, H, G, d] int, the token it is of, -1 for none.
  torch::Tensor place = {};
};

Largest pool_largest_cpu(const PoolInputs& inputs, const PoolWhere& where,
                         bool with_place);

// The gradient of x, in the type that is computed in. `known`: for spans the places,
// for prefixes out.
torch::Tensor pool_largest_gradient_cpu(const torch::Tensor& dout,
                                        const torch::Tensor& known,
                                        const torch::Tensor& keep, int64_t tokens,
                                        const PoolWhere& where);

}  // namespace longspan
