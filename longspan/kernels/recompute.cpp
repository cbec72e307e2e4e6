#include "longspan/kernels/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace longspan {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// An autograd::Function takes a fixed number of tensors; this is any number.
class RecomputeNode : public torch::autograd::Node {
 public:
  RecomputeNode(Recomputed f, Tensors inputs, Tensors parameters)
      : f_(std::move(f)),
        inputs_(std::move(inputs)),
        parameters_(std::move(parameters)) {}

  Tensors apply(Tensors&& slopes) override {
    const torch::AutoGradMode with_gradients(true);
    Tensors from, outs, given, wanted;
    for (const Tensor& input : inputs_)
      from.push_back(input.detach().requires_grad_(input.requires_grad()));
    const Tensors again = f_(from, /*again=*/true);
    for (size_t i = 0; i < again.size(); ++i) {
      if (!slopes[i].defined() || !again[i].requires_grad()) continue;
      outs.push_back(again[i]);
      given.push_back(slopes[i]);
    }
    std::vector<size_t> places;
    const auto want = [&](const Tensor& tensor, size_t place) {
      if (!tensor.requires_grad()) return;
      wanted.push_back(tensor);
      places.push_back(place);
    };
    for (size_t i = 0; i < from.size(); ++i) want(from[i], i);
    for (size_t i = 0; i < parameters_.size(); ++i)
      want(parameters_[i], from.size() + i);
    Tensors gradients(from.size() + parameters_.size());
    if (outs.empty() || wanted.empty()) return gradients;
    const Tensors found =
        torch::autograd::grad(outs, wanted, given, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < places.size(); ++i) gradients[places[i]] = found[i];
    return gradients;
  }

  void release_variables() override {
    inputs_.clear();
    parameters_.clear();
    f_ = nullptr;
  }

 private:
  Recomputed f_;
  Tensors inputs_, parameters_;
};

}  // namespace

Tensors recompute(const Recomputed& f, const Tensors& inputs,
                  const Tensors& parameters) {
  const bool needed = torch::GradMode::is_enabled() &&
                      (torch::autograd::any_variable_requires_grad(inputs) ||
                       torch::autograd::any_variable_requires_grad(parameters));
  if (!needed) return f(inputs, /*again=*/false);
  Tensors outs;
  {
    const torch::NoGradGuard nothing_kept;
    outs = f(inputs, /*again=*/false);
  }
  const std::shared_ptr<RecomputeNode> node(new RecomputeNode(f, inputs, parameters),
                                            torch::autograd::deleteNode);
  Tensors all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  node->set_next_edges(torch::autograd::collect_next_edges(all));
  for (Tensor& out : outs) {
    if (out.defined() && out.is_floating_point()) {
      if (out.is_view()) out = out.clone();
      torch::autograd::set_history(out, node);
    }
  }
  return outs;
}

}  // namespace longspan
