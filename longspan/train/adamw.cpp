#include "longspan/train/adamw.h"

#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/base/words.h"

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
    require(!parameter.is_cpu() || parameter.scalar_type() == torch::kFloat ||
                parameter.scalar_type() == torch::kDouble,
            "AdamW: parameters on the CPU must be float or double, but ", name, " is ",
            parameter.scalar_type());
    const bool decays = options.decay_vectors || parameter.dim() >= 2;
    all_.push_back({.name = name,
                    .parameter = parameter,
                    .first = torch::zeros_like(parameter),
                    .second = torch::zeros_like(parameter),
                    .weight_decay = decays ? options.weight_decay : 0});
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

void AdamW::step(double rate, double scale) {
  const torch::NoGradGuard without_gradients;
  ++steps_;
  const auto t = static_cast<double>(steps_);
  for (const One& one : all_) {
    const Tensor slope = one.parameter.grad();
    if (!slope.defined()) continue;
    update({.rate = rate * one.rate,
            .decay = one.weight_decay,
            .beta1 = options_.beta1,
            .beta2 = options_.beta2,
            .first_scale = 1 / (1 - std::pow(options_.beta1, t)),
            .second_scale = 1 / (1 - std::pow(options_.beta2, t)),
            .epsilon = options_.epsilon,
            .scale = scale},
           one.parameter.detach(), slope, one.first, one.second);
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
