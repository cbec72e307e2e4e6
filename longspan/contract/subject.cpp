#include "longspan/contract/subject.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/utils.h>

namespace longspan {
namespace {

using torch::Tensor;

Value::Map test_settings(const Mechanism& mechanism) {
  return *Value::parse(std::string(mechanism.test_settings)).as<Value::Map>();
}

// Normal numbers that are the same on every device.
Tensor normal(at::IntArrayRef shape, int64_t seed,
              const torch::TensorOptions& options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn(shape, generator, torch::kDouble).to(options);
}

}  // namespace

Subject::Subject(const Mechanism& mechanism, const Options& options)
    : mechanism_(mechanism), options_(options) {
  sizes_ = Sizes{.embedding = 3 * options.head_width,
                 .heads = 2,
                 .key_heads = mechanism.can.grouped ? 1 : 2,
                 .head_width = options.head_width,
                 .value_width = options.head_width + 3,
                 .longest = 2048}
               .completed();
  settings_ =
      Settings::complete(mechanism.name, mechanism.settings, test_settings(mechanism));
  torch::manual_seed(options.seed);
  const auto build = [&]<class Seam>(Mechanism::Make<Seam>) {
    part_ = longspan::make<Seam>(mechanism, sizes_, test_settings(mechanism));
  };
  std::visit(build, mechanism.make);
  module().to(torch::kDouble);
  torch::NoGradGuard changing;
  int64_t seed = 1000 * options.seed;
  for (auto& parameter : module().parameters())
    parameter.add_(0.3 * normal(parameter.sizes(), ++seed, parameter.options()));
  module().to(options.device, options.dtype);
}

torch::nn::Module& Subject::module() const {
  return std::visit([](const auto& part) -> torch::nn::Module& { return *part; },
                    part_);
}

torch::TensorOptions Subject::tensor_options() const {
  return torch::TensorOptions(options_.dtype).device(options_.device);
}

Tensors Subject::inputs(int64_t examples, int64_t tokens, int64_t seed,
                        int64_t keys) const {
  const auto made = [&](at::IntArrayRef shape) {
    return normal(shape, seed++, tensor_options());
  };
  if (!std::holds_alternative<std::shared_ptr<Attention>>(part_))
    return {made({examples, tokens, sizes_.embedding})};
  const int64_t count = keys < 0 ? tokens : keys;
  return {made({examples, sizes_.heads, tokens, sizes_.head_width}),
          made({examples, sizes_.key_heads, count, sizes_.head_width}),
          made({examples, sizes_.key_heads, count, sizes_.value_width})};
}

Tensor Subject::run(const Tensors& inputs, Pass& pass) const {
  const auto forward = [&]<class Seam>(const std::shared_ptr<Seam>& part) -> Tensor {
    if constexpr (std::is_same_v<Seam, Attention>)
      return part->forward(inputs[0], inputs[1], inputs[2], pass);
    else if constexpr (std::is_same_v<Seam, Stack>)
      return part->forward(inputs[0], pass).x;
    else
      return part->forward(inputs[0], pass);
  };
  return std::visit(forward, part_);
}

Tensor Subject::reference(const Tensors& inputs, Pass& pass) const {
  const auto forward = [&]<class Seam>(const std::shared_ptr<Seam>& part) -> Tensor {
    if constexpr (std::is_same_v<Seam, Attention>)
      return part->reference(inputs[0], inputs[1], inputs[2], pass);
    else if constexpr (std::is_same_v<Seam, Stack>)
      return part->reference(inputs[0], pass).x;
    else
      return part->reference(inputs[0], pass);
  };
  return std::visit(forward, part_);
}

template <class Compute>
Tensors Subject::with_gradients(const Tensors& inputs, Pass& pass,
                                Compute compute) const {
  Tensors leaves;
  for (const auto& input : inputs)
    leaves.push_back(input.detach().clone().requires_grad_());
  const Tensor out = compute(leaves, pass);
  Tensors sources = leaves;
  for (const auto& parameter : module().parameters())
    if (parameter.requires_grad()) sources.push_back(parameter);
  const Tensor weights = normal(out.sizes(), 77, tensor_options());
  Tensors results = torch::autograd::grad({out}, sources, {weights},
                                          /*retain_graph=*/false,
                                          /*create_graph=*/false,
                                          /*allow_unused=*/true);
  for (size_t i = 0; i < results.size(); ++i)
    if (!results[i].defined()) results[i] = torch::zeros_like(sources[i]);
  results.insert(results.begin(), out.detach());
  return results;
}

Tensors Subject::run_and_gradients(const Tensors& inputs, Pass pass) const {
  return with_gradients(inputs, pass,
                        [&](const Tensors& x, Pass& p) { return run(x, p); });
}

Tensors Subject::reference_and_gradients(const Tensors& inputs, Pass pass) const {
  return with_gradients(inputs, pass,
                        [&](const Tensors& x, Pass& p) { return reference(x, p); });
}

}  // namespace longspan
