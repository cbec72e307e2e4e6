#include "longspan/train/adamw.h"

#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/base/words.h"
#include "longspan/kernels/total.h"
#include "longspan/train/cuda/adamw.h"

namespace longspan {
namespace {

using torch::Tensor;

struct Update {
  double rate, decay, beta1, beta2, first_scale, second_scale, epsilon, scale;
};

// Plain arithmetic, no fused operations: the same bits wherever the work is cut.
template <class Number>
void update_cpu(const Update& u, Number* p, const Number* g, Number* m, Number* v,
                int64_t count) {
  const auto beta1 = static_cast<Number>(u.beta1), beta2 = static_cast<Number>(u.beta2);
  const auto rest1 = static_cast<Number>(1 - u.beta1),
             rest2 = static_cast<Number>(1 - u.beta2);
  const auto step = static_cast<Number>(u.rate * u.first_scale);
  const auto second = static_cast<Number>(u.second_scale);
  const auto epsilon = static_cast<Number>(u.epsilon);
  const auto decay = static_cast<Number>(u.rate * u.decay);
  const auto scale = static_cast<Number>(u.scale);
  at::parallel_for(0, count, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Number slope = g[i] * scale;
      m[i] = beta1 * m[i] + rest1 * slope;
      v[i] = beta2 * v[i] + rest2 * slope * slope;
      p[i] = p[i] - step * m[i] / (std::sqrt(v[i] * second) + epsilon) - decay * p[i];
    }
  });
}

void update(const Update& u, const Tensor& p, const Tensor& g, const Tensor& m,
            const Tensor& v) {
  if (p.is_cpu() && p.is_contiguous()) {
    AT_DISPATCH_FLOATING_TYPES(p.scalar_type(), "adamw", [&] {
      update_cpu(u, p.data_ptr<scalar_t>(), g.contiguous().data_ptr<scalar_t>(),
                 m.data_ptr<scalar_t>(), v.data_ptr<scalar_t>(), p.numel());
    });
    return;
  }
  const Tensor slope = g * u.scale;
  m.mul_(u.beta1).add_(slope, 1 - u.beta1);
  v.mul_(u.beta2).addcmul_(slope, slope, 1 - u.beta2);
  const Tensor change = m / (v * u.second_scale).sqrt_().add_(u.epsilon);
  p.sub_(change * (u.rate * u.first_scale) + p * (u.rate * u.decay));
}

// Whether the CUDA kernels over lists of tensors take it.
bool is_listed(const Tensor& tensor) {
  return kHasCuda && tensor.is_cuda() && tensor.scalar_type() == torch::kFloat &&
         tensor.is_contiguous();
}

cuda::UpdatedWeight listed(const Update& u, const Tensor& weight,
                           const Tensor& gradient, const Tensor& first,
                           const Tensor& second) {
  return {.weight = weight.data_ptr<float>(),
          .gradient = gradient.data_ptr<float>(),
          .first = first.data_ptr<float>(),
          .second = second.data_ptr<float>(),
          .count = weight.numel(),
          .step = static_cast<float>(u.rate * u.first_scale),
          .decay = static_cast<float>(u.rate * u.decay)};
}

uint16_t* bits(const Tensor& tensor) {
  return reinterpret_cast<uint16_t*>(tensor.data_ptr<at::BFloat16>());
}

}  // namespace

NamedParameters named_parameters(const torch::nn::Module& module) {
  NamedParameters parameters;
  for (const auto& entry : module.named_parameters())
    parameters.emplace_back(entry.key(), entry.value());
  return parameters;
}

bool fits(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (size_t skip = 0; skip <= name.size(); ++skip)
      if (fits(name.substr(skip), pattern.substr(1))) return true;
    return false;
  }
  return !name.empty() && name.front() == pattern.front() &&
         fits(name.substr(1), pattern.substr(1));
}

AdamW::AdamW(const NamedParameters& parameters, const AdamWOptions& options)
    : options_(options) {
  for (const auto& [name, parameter] : parameters) {
    const auto dtype = parameter.scalar_type();
    require(
        dtype == torch::kFloat || dtype == torch::kDouble || dtype == torch::kBFloat16,
        "AdamW: parameters must be float, double or bfloat16, but ", name, " is ",
        dtype);
    require(dtype != torch::kBFloat16 || parameter.is_contiguous(),
            "AdamW: parameters in bfloat16 must be contiguous, but ", name,
            " has strides ", parameter.strides());
    const Tensor weight =
        dtype == torch::kBFloat16 ? parameter.detach().to(torch::kFloat) : parameter;
    const bool decays = options.decay_vectors || parameter.dim() >= 2;
    all_.push_back({.name = name,
                    .parameter = parameter,
                    .weight = weight,
                    .first = torch::zeros_like(weight),
                    .second = torch::zeros_like(weight),
                    .weight_decay = decays ? options.weight_decay : 0,
                    .version = parameter._version()});
    weights_.emplace_back(name, weight);
  }
  const auto* groups = options.groups.as<Value::List>();
  require(groups != nullptr,
          "train.groups must be a list of {match: .., weight_decay: "
          ".., rate: ..}, got ",
          options.groups.text());
  for (const Value& group : *groups) {
    const auto* map = group.as<Value::Map>();
    const auto* match =
        map && map->contains("match") ? map->at("match").as<std::string>() : nullptr;
    require(match != nullptr,
            "train.groups: a group must be {match: .., weight_decay: ",
            ".., rate: ..}, got ", group.text());
    for (const auto& [key, value] : *map) {
      if (key == "match") continue;
      require(key == "weight_decay" || key == "rate", "train.groups: no key '", key,
              "'", hint(key, {"match", "weight_decay", "rate"}));
      const auto number = value.as_number();
      require(number && *number >= 0, "train.groups: ", key,
              " must be a number of 0 or more, got ", value.text());
    }
    bool any = false;
    for (One& one : all_) {
      if (!fits(one.name, *match)) continue;
      any = true;
      if (map->contains("weight_decay"))
        one.weight_decay = *map->at("weight_decay").as_number();
      if (map->contains("rate")) one.rate = *map->at("rate").as_number();
    }
    require(any, "train.groups: no parameter is called like '", *match, "'");
  }
}

void AdamW::round_weights() {
  const torch::NoGradGuard without_gradients;
  for (One& one : all_) {
    if (!one.is_rounded()) continue;
    one.parameter.detach().copy_(one.weight);
    one.version = one.parameter._version();
  }
}

// A module may have changed its parameters itself, as to keep them within bounds.
void AdamW::follow_parameters() {
  for (One& one : all_) {
    if (!one.is_rounded() || one.version == one.parameter._version()) continue;
    const Tensor now = one.parameter.detach();
    one.weight.copy_(torch::where(now == one.weight.to(now.scalar_type()), one.weight,
                                  now.to(one.weight.scalar_type())));
    one.version = one.parameter._version();
  }
}

void AdamW::collect_gradients() {
  const torch::NoGradGuard without_gradients;
  std::vector<cuda::CollectedGradient> listed;
  std::vector<Tensor> alive;
  for (One& one : all_) {
    if (!one.is_rounded() || !one.parameter.grad().defined()) continue;
    const Tensor gradient = one.parameter.grad().contiguous();
    one.parameter.mutable_grad() = Tensor();
    const bool is_first = !one.sum.defined();
    if (is_listed(one.weight)) {
      if (is_first) one.sum = torch::empty_like(one.weight);
      listed.push_back({.sum = one.sum.data_ptr<float>(),
                        .gradient = bits(gradient),
                        .count = gradient.numel(),
                        .is_first = is_first});
      alive.push_back(gradient);
    } else if (is_first) {
      one.sum = gradient.to(torch::kFloat);
    } else {
      one.sum.add_(gradient);
    }
  }
  if constexpr (kHasCuda)
    if (!listed.empty()) cuda::collect_gradients(listed, alive[0].device());
}

void AdamW::clear_gradients() {
  for (One& one : all_) {
    one.parameter.mutable_grad() = Tensor();
    one.sum = Tensor();
  }
}

Tensor AdamW::gradient_square() {
  collect_gradients();
  const torch::NoGradGuard without_gradients;
  Tensor square;
  const auto add = [&](const Tensor& part) {
    square = square.defined() ? square + part : part;
  };
  std::vector<cuda::SquaredGradient> listed;
  std::vector<Tensor> alive;
  for (const One& one : all_) {
    const Tensor gradient = one.gradient();
    if (!gradient.defined()) continue;
    if (is_listed(one.weight)) {
      alive.push_back(gradient.contiguous());
      listed.push_back(
          {.gradient = alive.back().data_ptr<float>(), .count = gradient.numel()});
    } else {
      add(total(gradient.square()).to(torch::kDouble));
    }
  }
  if constexpr (kHasCuda)
    if (!listed.empty()) add(cuda::sum_of_squares(listed, alive[0].device()));
  return square;
}

void AdamW::step(double rate, double scale) {
  collect_gradients();
  const torch::NoGradGuard without_gradients;
  follow_parameters();
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const double first_scale = 1 / (1 - std::pow(options_.beta1, t)),
               second_scale = 1 / (1 - std::pow(options_.beta2, t));
  std::vector<cuda::UpdatedWeight> list;
  std::vector<Tensor> alive;
  for (One& one : all_) {
    const Tensor gradient = one.gradient();
    if (!gradient.defined()) continue;
    const Update u{.rate = rate * one.rate,
                   .decay = one.weight_decay,
                   .beta1 = options_.beta1,
                   .beta2 = options_.beta2,
                   .first_scale = first_scale,
                   .second_scale = second_scale,
                   .epsilon = options_.epsilon,
                   .scale = scale};
    const Tensor weight = one.weight.detach();
    one.sum = Tensor();
    if (is_listed(weight)) {
      alive.push_back(gradient.contiguous());
      list.push_back(listed(u, weight, alive.back(), one.first, one.second));
      if (one.is_rounded()) list.back().rounded = bits(one.parameter);
      continue;
    }
    update(u, weight, gradient, one.first, one.second);
    if (!one.is_rounded()) continue;
    one.parameter.detach().copy_(weight);
    one.version = one.parameter._version();
  }
  if constexpr (kHasCuda) {
    const auto number = [](double value) { return static_cast<float>(value); };
    if (!list.empty())
      cuda::update_weights(list,
                           {.beta1 = number(options_.beta1),
                            .beta2 = number(options_.beta2),
                            .rest1 = number(1 - options_.beta1),
                            .rest2 = number(1 - options_.beta2),
                            .second_scale = number(second_scale),
                            .epsilon = number(options_.epsilon),
                            .scale = number(scale)},
                           alive[0].device());
  }
}

NamedTensors AdamW::saved() const {
  NamedTensors tensors;
  for (const One& one : all_) {
    tensors["first." + one.name] = one.first;
    tensors["second." + one.name] = one.second;
  }
  return tensors;
}

void AdamW::load(const NamedTensors& saved, int64_t steps) {
  const auto take = [&](const std::string& name, const Tensor& into) {
    const auto found = saved.find(name);
    require(found != saved.end(), "the optimizer's state lacks ", name);
    require(found->second.sizes() == into.sizes(), "the optimizer's ", name,
            " must be ", shape(into), ", got ", shape(found->second));
    into.copy_(found->second);
  };
  const torch::NoGradGuard without_gradients;
  for (const One& one : all_) {
    take("first." + one.name, one.first);
    take("second." + one.name, one.second);
  }
  steps_ = steps;
}

}  // namespace longspan
