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
#include "longspan/models/block.h"

namespace longspan::cli {

using torch::Tensor;

std::string refusal(const Mechanism& mechanism, const AttentionSetup& setup) {
  if (setup.causal && mechanism.can.causal == Causal::never)
    return "has no causal form; leave out --causal";
  if (!setup.causal && mechanism.can.causal == Causal::always)
    return "has only a causal form; give --causal";
  return "";
}

AttentionLayer::AttentionLayer(const Mechanism& mechanism, const Value::Map& settings,
                               Form form, int64_t length, const AttentionSetup& setup,
                               int64_t blocks)
    : setup_(setup), mechanism_(mechanism) {
  torch::manual_seed(1);
  const Sizes sizes =
      Sizes{.heads = setup.heads, .head_width = setup.head_width, .longest = length}
          .completed();
  if (form == Form::heads)
    make_heads(settings, sizes);
  else
    make_tokens(settings, sizes, form, blocks);
  convert(*module_, setup.device, setup.type);
  for (const Tensor& parameter : module_->parameters())
    if (parameter.requires_grad()) sources_.push_back(parameter);
  constexpr int64_t kSideTokens = 16;
  if (mechanism_.can.side)
    side_ = torch::randn({setup_.batch, kSideTokens, sizes.embedding},
                         tokens_.options().requires_grad(false));

  if (mechanism.can.carry != Carry::none) {
    const torch::NoGradGuard without_gradients;
    Pass earlier = new_pass(carried_);
    forward_(earlier);
  }
  turn();
  const PeakBytes peak(setup.device);
  const Spent spent = spent_on([&] { turn(); });
  peak_bytes_ = peak.newly();
  constexpr double kTurn = 0.01, kMostPasses = 1000;  // seconds: above a clock's noise
  passes_ =
      static_cast<int>(std::clamp(std::ceil(kTurn / spent.wall), 1.0, kMostPasses));
}

Tensor AttentionLayer::input(at::IntArrayRef shape) {
  const auto options = torch::TensorOptions(setup_.type).device(setup_.device);
  return sources_.emplace_back(
      torch::randn(shape, options).requires_grad_(setup_.backward));
}

void AttentionLayer::make_heads(const Value::Map& settings, const Sizes& sizes) {
  const auto heads = [&] {
    return input({setup_.batch, sizes.heads, sizes.longest, sizes.head_width});
  };
  const auto attention = make<Attention>(mechanism_, sizes, settings);
  Tensor q, k;
  const Tensor v = tokens_ = heads();
  const Projections projections = mechanism_.projections;
  if (projections != Projections::v) q = heads();
  if (projections != Projections::v) k = projections == Projections::qk_v ? q : heads();
  forward_ = [=](Pass& pass) { return attention->forward(q, k, v, pass); };
  module_ = attention;
}

void AttentionLayer::make_tokens(const Value::Map& settings, const Sizes& sizes,
                                 Form form, int64_t blocks) {
  const Tensor x = tokens_ = input({setup_.batch, sizes.longest, sizes.embedding});
  if (form == Form::tokens) {
    const auto mixer = make_mixer(mechanism_, sizes, settings);
    forward_ = [=](Pass& pass) { return mixer->forward(x, pass); };
    module_ = mixer;
  } else if (mechanism_.seam() == "stack") {
    const auto stack = make<Stack>(mechanism_, sizes, settings);
    forward_ = [=](Pass& pass) { return stack->forward(x, pass).x; };
    module_ = stack;
  } else {
    std::vector<std::shared_ptr<Block>> all;
    module_ = std::make_shared<torch::nn::Module>();
    for (int64_t i = 0; i < blocks; ++i)
      all.push_back(module_->register_module(
          "block" + std::to_string(i),
          std::make_shared<Block>(make_mixer(mechanism_, sizes, settings), sizes,
                                  BlockOptions{})));
    forward_ = [=](Pass& pass) {
      Tensor y = x;
      for (const auto& block : all) y = block->forward(y, pass);
      return y;
    };
  }
}

Pass AttentionLayer::new_pass(Record& carry) const {
  Pass pass;
  pass.mask.causal = setup_.causal;
  pass.training = pass.sampling = setup_.backward;
  pass.draw = Draw(1);
  pass.side.x = side_;
  if (mechanism_.can.global && setup_.global > 0) {
    pass.mask.global =
        torch::zeros({setup_.batch, tokens_.size(-2)},
                     torch::TensorOptions(setup_.device).dtype(torch::kBool));
    pass.mask.global.slice(1, 0, setup_.global).fill_(true);
  }
  if (mechanism_.can.carry != Carry::none) pass.carry = &carry;
  return pass;
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
  const int64_t flops = flops_counted(), blocks = blocks_run();
  const Tensor out = forward_(pass);
  flops_ = static_cast<double>(flops_counted() - flops);
  blocks_ = blocks_run() - blocks;
  if (setup_.backward) backward(out, pass);
}

void AttentionLayer::turn() {
  for (int i = 0; i < passes_; ++i) run();
  if (setup_.device.is_cuda()) torch::cuda::synchronize();
}

}  // namespace longspan::cli
