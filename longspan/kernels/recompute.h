// Activations computed again in the backward pass instead of kept.

#pragma once

#include <functional>
#include <vector>

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

// What one half of a layer adds: the first of f({b}); its other results are told
// beside.
struct ReversibleStep {
  Recomputed f;
  std::vector<torch::Tensor> parameters = {};  // those that f uses
};

// Goes through steps (a, b) -> (b, a + f(b)), of which each can be undone (Gomez et al.
// 2017, arXiv:1707.04585): only the last a and b are kept, so memory does not depend on
// how many steps there are, and the gradient finds those before by taking off again
// what was added. Returns a, b and what the steps told beside, in their order. f is
// called and differentiable as for recompute(); it does not change the type or shape of
// b.
std::vector<torch::Tensor> reversible(const std::vector<ReversibleStep>& steps,
                                      const torch::Tensor& a, const torch::Tensor& b);

}  // namespace longspan
