#include "longspan/contract/subject.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/utils.h>

namespace longspan {
namespace {

using torch::Tensor;

// Normal numbers that are the same on every device.
Tensor normal(at::IntArrayRef shape, int64_t seed,
              const torch::TensorOptions& options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn(shape, generator, torch::kDouble).to(options);
}

}  // namespace

Value::Map test_settings(const Mechanism& mechanism) {
  return *Value::parse(std::string(mechanism.test_settings)).as<Value::Map>();
}

Subject::Subject(const Mechanism& mechanism, const Options& options)
    : mechanism_(mechanism), options_(options) {
  sizes_ = Sizes{.embedding = 3 * options.head_width,
                 .heads = 4,
                 .key_heads = mechanism.can.grouped && options.grouped ? 2 : 4,
                 .head_width = options.head_width,
                 .value_width = options.head_width + 3,
                 .longest = 2048}
               .completed();
  const Value::Map given = options.settings.value_or(test_settings(mechanism));
  settings_ = Settings::complete(mechanism.name, mechanism.settings, given);
  torch::manual_seed(options.seed);
  const auto build = [&]<class Seam>(Mechanism::Make<Seam>) {
    part_ = longspan::make<Seam>(mechanism, sizes_, given);
  };
  std::visit(build, mechanism.make);
  convert(module(), torch::kCPU, torch::kDouble);
  torch::NoGradGuard changing;
  int64_t seed = 1000 * options.seed;
  for (auto& parameter : module().parameters())
    parameter.add_(0.3 * normal(parameter.sizes(), ++seed, parameter.options()));
  convert(module(), options.device, options.dtype);
}

torch::nn::Module& Subject::module() const {
  return std::visit([](const auto& part) -> torch::nn::Module& { return *part; },
                    part_);
}

const Abilities& Subject::can() const {
  return std::visit([](const auto& part) -> const Abilities& { return part->can(); },
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
  if (!is_attention()) return {made({examples, tokens, sizes_.embedding})};
  const int64_t count = keys < 0 ? tokens : keys;
  const auto q = made({examples, sizes_.heads, tokens, sizes_.head_width});
  const auto k = made({examples, sizes_.key_heads, count, sizes_.head_width});
  const auto v = made({examples, sizes_.key_heads, count, sizes_.value_width});
  switch (mechanism_.projections) {
    case Projections::qk_v: return {q, v};
    case Projections::v: return {v};
    default: return {q, k, v};
  }
}

void Subject::add_context(Pass& pass, int64_t examples, int64_t keys) const {
  if (!is_attention())
    pass.context.x = normal({examples, keys, sizes_.embedding}, 55, tensor_options());
}

Sight Subject::sight(int64_t tokens, bool causal) const {
  return std::visit([&](const auto& part) { return part->sight(tokens, causal); },
                    part_);
}

Tensor Subject::ranks(int64_t tokens) const {
  if (!mechanism_.tokens_in_order) return torch::arange(tokens);
  const auto order =
      torch::tensor(mechanism_.tokens_in_order(settings_, tokens), torch::kLong);
  return torch::zeros(tokens, torch::kLong).scatter(0, order, torch::arange(tokens));
}

Subject::Output Subject::compute_once(const Tensors& inputs, Pass& pass,
                                      Form form) const {
  const auto of_tokens = [](const Tensor& x) -> Output {
    return {.x = x, .tokens = torch::arange(x.size(-2))};
  };
  const auto visit = [&]<class Seam>(const std::shared_ptr<Seam>& part) -> Output {
    const bool fast = form == Form::fast;
    if constexpr (std::is_same_v<Seam, Attention>) {
      const bool alone = mechanism_.projections == Projections::v;
      const Tensor q = alone ? Tensor() : inputs.front();
      const Tensor k = inputs.size() == 3 ? inputs[1] : q;
      return of_tokens(fast ? part->forward(q, k, inputs.back(), pass)
                            : part->reference(q, k, inputs.back(), pass));
    } else {
      auto result =
          fast ? part->forward(inputs[0], pass) : part->reference(inputs[0], pass);
      if constexpr (!std::is_same_v<Seam, Stack>) {
        return of_tokens(result);
      } else {
        if (!result.positions.defined()) return of_tokens(result.x);
        const Tensor places = result.positions.to(torch::kCPU, torch::kLong);
        return {.x = result.x, .tokens = places.dim() == 1 ? places : places[0]};
      }
    }
  };
  Output output = std::visit(visit, part_);
  output.side = pass.side.x;
  return output;
}

Tensor Subject::side(int64_t examples) const {
  return normal({1, 4, sizes_.embedding}, 66, tensor_options())
      .expand({examples, -1, -1});
}

Record Subject::carried(const Pass& pass, int64_t examples) const {
  constexpr int64_t kTokens = 40, kBatches = 3;
  Record carry;
  if (can().carry == Carry::none) return carry;
  const torch::NoGradGuard past;
  for (int64_t batch = 0; batch < kBatches; ++batch) {
    Pass earlier;
    earlier.mask.causal = pass.mask.causal;
    earlier.draw = pass.draw;
    // Evaluation only reads what is of the model.
    earlier.training = pass.training || is_of_model(can().carry);
    earlier.carry = &carry;
    if (can().side) earlier.side.x = side(examples);
    Tensors others;  // alike for all examples
    for (const auto& input : inputs(1, kTokens, /*seed=*/88 + 10 * batch)) {
      auto shape = input.sizes().vec();
      shape[0] = examples;
      others.push_back(input.expand(shape));
    }
    compute_once(others, earlier, Form::fast);
  }
  return carry;
}

Subject::Output Subject::compute(const Tensors& inputs, Pass& pass, Form form) const {
  const int64_t examples = inputs[0].size(0);
  if (can().side && !pass.side.x.defined()) pass.side.x = side(examples);
  if (can().carry == Carry::none || pass.carry) return compute_once(inputs, pass, form);
  Record carry = carried(pass, examples);
  Pass with_carry = pass;
  with_carry.carry = &carry;
  return compute_once(inputs, with_carry, form);
}

Subject::Output Subject::run(const Tensors& inputs, Pass& pass) const {
  return compute(inputs, pass, Form::fast);
}

Subject::Output Subject::reference(const Tensors& inputs, Pass& pass) const {
  return compute(inputs, pass, Form::defined);
}

Tensors Subject::with_gradients(const Tensors& inputs, Pass& pass, Form form) const {
  Tensors leaves;
  for (const auto& input : inputs)
    leaves.push_back(input.detach().clone().requires_grad_());
  const Output output = compute(leaves, pass, form);
  Tensors all = {output.x}, outs = {output.x};
  if (output.side.defined()) all.push_back(output.side);
  if (output.side.defined() && output.side.requires_grad()) outs.push_back(output.side);
  Tensors sources = leaves, weights;
  for (const auto& parameter : module().parameters())
    if (parameter.requires_grad()) sources.push_back(parameter);
  for (const auto& out : outs)
    weights.push_back(normal(out.sizes(), 77, tensor_options()));
  Tensors results = torch::autograd::grad(outs, sources, weights,
                                          /*retain_graph=*/false,
                                          /*create_graph=*/false,
                                          /*allow_unused=*/true);
  for (size_t i = 0; i < results.size(); ++i)
    if (!results[i].defined()) results[i] = torch::zeros_like(sources[i]);
  for (auto& out : all) out = out.detach();
  results.insert(results.begin(), all.begin(), all.end());
  return results;
}

Tensors Subject::run_and_gradients(const Tensors& inputs, Pass pass) const {
  return with_gradients(inputs, pass, Form::fast);
}

Tensors Subject::reference_and_gradients(const Tensors& inputs, Pass pass) const {
  return with_gradients(inputs, pass, Form::defined);
}

}  // namespace longspan
