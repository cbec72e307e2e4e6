#include "longspan/cli/attention_layer.h"

#include <algorithm>
#include <cmath>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include "longspan/attention/projected.h"
#include "longspan/base/flops.h"
#include "longspan/base/memory.h"

namespace longspan::cli {

using torch::Tensor;

AttentionLayer::AttentionLayer(const Mechanism& mechanism, const Value::Map& settings,
                               Form form, int64_t length, const AttentionSetup& setup)
    : setup_(setup), mechanism_(mechanism) {
  torch::manual_seed(1);
  const Sizes sizes =
      Sizes{.heads = setup.heads, .head_width = setup.head_width, .longest = length}
          .completed();
  if (form == Form::heads)
    attention_ = make<Attention>(mechanism, sizes, settings);
  else
    mixer_ = make_mixer(mechanism, sizes, settings);
  torch::nn::Module& module =
      attention_ ? static_cast<torch::nn::Module&>(*attention_) : *mixer_;
  convert(module, setup.device, setup.type);
  make_input(form, length, sizes.embedding);
  for (const Tensor& parameter : module.parameters())
    if (parameter.requires_grad()) sources_.push_back(parameter);

  if (mechanism.can.carry != Carry::none) {
    const torch::NoGradGuard without_gradients;
    Pass earlier = new_pass(carried_);
    forward(earlier);
  }
  turn();
  const PeakBytes peak(setup.device);
  const Spent spent = spent_on([&] { turn(); });
  peak_bytes_ = peak.newly();
  constexpr double kTurn = 0.01, kMostPasses = 1000;  // seconds: above a clock's noise
  passes_ =
      static_cast<int>(std::clamp(std::ceil(kTurn / spent.wall), 1.0, kMostPasses));
}

void AttentionLayer::make_input(Form form, int64_t length, int64_t embedding) {
  const auto options = torch::TensorOptions(setup_.type).device(setup_.device);
  const auto input = [&](at::IntArrayRef shape) {
    return sources_.emplace_back(
        torch::randn(shape, options).requires_grad_(setup_.backward));
  };
  const auto heads = [&] {
    return input({setup_.batch, setup_.heads, length, setup_.head_width});
  };
  if (form == Form::tokens) {
    x_ = input({setup_.batch, length, embedding});
  } else {
    v_ = heads();
    const Projections projections = mechanism_.projections;
    if (projections != Projections::v) q_ = heads();
    if (projections != Projections::v)
      k_ = projections == Projections::qk_v ? q_ : heads();
  }
  constexpr int64_t kSideTokens = 16;
  if (mechanism_.can.side)
    side_ = torch::randn({setup_.batch, kSideTokens, embedding}, options);
}

Pass AttentionLayer::new_pass(Record& carry) const {
  Pass pass;
  pass.mask.causal = setup_.causal;
  pass.training = setup_.backward;
  pass.draw = Draw(1);
  pass.side.x = side_;
  if (mechanism_.can.global && setup_.global > 0) {
    const Tensor& tokens = q_.defined() ? q_ : v_.defined() ? v_ : x_;
    pass.mask.global = torch::zeros({setup_.batch, tokens.size(-2)},
                                    tokens.options().dtype(torch::kBool));
    pass.mask.global.slice(1, 0, setup_.global).fill_(true);
  }
  if (mechanism_.can.carry != Carry::none) pass.carry = &carry;
  return pass;
}

Tensor AttentionLayer::forward(Pass& pass) const {
  return attention_ ? attention_->forward(q_, k_, v_, pass) : mixer_->forward(x_, pass);
}

void AttentionLayer::backward(const Tensor& out, const Pass& pass) {
  std::vector<Tensor> outs = {out};
  if (pass.side.x.defined()) outs.push_back(pass.side.x);
  for (const auto& [name, loss] : pass.losses) outs.push_back(loss);
  std::erase_if(outs, [](const Tensor& one) { return !one.requires_grad(); });
  if (gradients_.empty())
    for (const Tensor& one : outs) gradients_.push_back(torch::ones_like(one));
  torch::autograd::grad(outs, sources_, gradients_, /*retain_graph=*/false,
                        /*create_graph=*/false, /*allow_unused=*/true);
}

void AttentionLayer::run() {
  const torch::AutoGradMode recording(setup_.backward);
  Record carry = carried_;
  Pass pass = new_pass(carry);
  const int64_t before = flops_counted();
  const Tensor out = forward(pass);
  flops_ = static_cast<double>(flops_counted() - before);
  if (setup_.backward) backward(out, pass);
}

void AttentionLayer::turn() {
  for (int i = 0; i < passes_; ++i) run();
  if (setup_.device.is_cuda()) torch::cuda::synchronize();
}

}  // namespace longspan::cli
