#include "longspan/kernels/recompute.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

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

// Of many steps; kept are the last two tensors.
class ReversibleNode : public torch::autograd::Node {
 public:
  ReversibleNode(std::vector<ReversibleStep> steps, Tensors parameters)
      : steps_(std::move(steps)), parameters_(std::move(parameters)) {
    for (size_t i = 0; i < parameters_.size(); ++i)
      number_of_.emplace(parameters_[i].unsafeGetTensorImpl(), i);
  }

  void keep(const Tensor& a, const Tensor& b) {
    a_ = a.detach();
    b_ = b.detach();
  }

  Tensors apply(Tensors&& slopes) override {
    const torch::AutoGradMode with_gradients(true);
    Tensors gradients(2 + parameters_.size());
    Tensor a = a_, b = b_, &da = gradients[0], &db = gradients[1];
    da = slopes[0];
    db = slopes[1];
    size_t beside = slopes.size();  // where those told beside by the later steps begin
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      const Tensor from = a.detach().requires_grad_();
      const Tensors again = step->f({from}, /*again=*/true);
      beside -= again.size() - 1;
      Tensors outs, given, wanted = {from};
      const auto take = [&](const Tensor& out, const Tensor& slope) {
        if (!slope.defined() || !out.requires_grad()) return;
        outs.push_back(out);
        given.push_back(slope);
      };
      take(again[0], db);
      for (size_t i = 1; i < again.size(); ++i) take(again[i], slopes[beside + i - 1]);
      for (const Tensor& parameter : step->parameters)
        if (parameter.requires_grad()) wanted.push_back(parameter);
      const auto add = [](Tensor& to, const Tensor& more) {
        if (more.defined()) to = to.defined() ? to + more : more;
      };
      b = b - again[0].detach();
      std::swap(a, b);
      std::swap(da, db);
      if (outs.empty()) continue;
      const Tensors found =
          torch::autograd::grad(outs, wanted, given, /*retain_graph=*/false,
                                /*create_graph=*/false, /*allow_unused=*/true);
      const torch::NoGradGuard adding;
      add(db, found[0]);
      for (size_t i = 1; i < found.size(); ++i)
        add(gradients[2 + number_of_.at(wanted[i].unsafeGetTensorImpl())], found[i]);
    }
    return gradients;
  }

  void release_variables() override {
    steps_.clear();
    parameters_.clear();
    number_of_.clear();
    a_.reset();
    b_.reset();
  }

 private:
  std::vector<ReversibleStep> steps_;
  Tensors parameters_;  // each once
  std::unordered_map<const c10::TensorImpl*, size_t> number_of_;
  Tensor a_, b_;
};

bool needs_gradient(const Tensors& inputs, const Tensors& parameters) {
  return torch::GradMode::is_enabled() &&
         (torch::autograd::any_variable_requires_grad(inputs) ||
          torch::autograd::any_variable_requires_grad(parameters));
}

// Makes `outs` results of `node`, which has gradients for `inputs` and `parameters`.
void set_node(const std::shared_ptr<torch::autograd::Node>& node, const Tensors& inputs,
              const Tensors& parameters, Tensors& outs) {
  Tensors all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  node->set_next_edges(torch::autograd::collect_next_edges(all));
  for (Tensor& out : outs) {
    if (!out.defined() || !out.is_floating_point()) continue;
    const bool is_input = std::ranges::any_of(
        inputs, [&](const Tensor& input) { return out.is_same(input); });
    if (out.is_view() || is_input) out = out.clone();
    torch::autograd::set_history(out, node);
  }
}

}  // namespace

Tensors recompute(const Recomputed& f, const Tensors& inputs,
                  const Tensors& parameters) {
  if (!needs_gradient(inputs, parameters)) return f(inputs, /*again=*/false);
  Tensors outs;
  {
    const torch::NoGradGuard nothing_kept;
    outs = f(inputs, /*again=*/false);
  }
  set_node(std::shared_ptr<RecomputeNode>(new RecomputeNode(f, inputs, parameters),
                                          torch::autograd::deleteNode),
           inputs, parameters, outs);
  return outs;
}

Tensors reversible(const std::vector<ReversibleStep>& steps, const Tensor& a,
                   const Tensor& b) {
  Tensors parameters;
  for (const ReversibleStep& step : steps)
    for (const Tensor& parameter : step.parameters)
      if (std::ranges::none_of(parameters, [&](const Tensor& known) {
            return known.is_same(parameter);
          }))
        parameters.push_back(parameter);
  const auto through = [&] {
    Tensors outs = {a, b};
    for (const ReversibleStep& step : steps) {
      const Tensors made = step.f({outs[1]}, /*again=*/false);
      outs[0] = outs[0] + made[0];
      std::swap(outs[0], outs[1]);
      outs.insert(outs.end(), made.begin() + 1, made.end());
    }
    return outs;
  };
  if (!needs_gradient({a, b}, parameters)) return through();
  Tensors outs;
  {
    const torch::NoGradGuard nothing_kept;
    outs = through();
  }
  const std::shared_ptr<ReversibleNode> node(new ReversibleNode(steps, parameters),
                                             torch::autograd::deleteNode);
  node->keep(outs[0], outs[1]);
  set_node(node, {a, b}, parameters, outs);
  return outs;
}

}  // namespace longspan
