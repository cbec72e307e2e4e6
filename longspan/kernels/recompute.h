// Activations computed again in the backward pass instead of kept.

#pragma once

#include <functional>

#include <torch/types.h>

namespace longspan {

using Recomputed = std::function<std::vector<torch::Tensor>(
    const std::vector<torch::Tensor>& inputs, bool again)>;

// f(inputs), of which only the inputs are kept: the gradient calls f again and goes
// through it. f must give the same each time; the second time `again` is true.
// `parameters` are those that f uses beside its inputs. Differentiable once.
std::vector<torch::Tensor> recompute(const Recomputed& f,
                                     const std::vector<torch::Tensor>& inputs,
                                     const std::vector<torch::Tensor>& parameters);

}  // namespace longspan
