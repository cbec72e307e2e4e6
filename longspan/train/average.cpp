#include "longspan/train/average.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>

#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

// a <- a + share * (b - a)
void approach(const Tensor& a, const Tensor& b, double share) {
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "average", [&] {
    auto* const to = a.data_ptr<scalar_t>();
    const Tensor whole = b.contiguous();
    const auto* const from = whole.data_ptr<scalar_t>();
    const auto part = static_cast<scalar_t>(share);
    at::parallel_for(0, a.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] += part * (from[i] - to[i]);
    });
  });
}

void approach(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
              double share) {
  if (!a.empty() && !a[0].is_cpu())
    return at::_foreach_add_(a, at::_foreach_sub(b, a), share);
  for (size_t i = 0; i < a.size(); ++i) approach(a[i], b[i], share);
}

std::vector<Tensor> copies(const NamedParameters& parameters) {
  std::vector<Tensor> made;
  for (const auto& [name, parameter] : parameters)
    made.push_back(parameter.detach().clone(at::MemoryFormat::Contiguous));
  return made;
}

}  // namespace

void WeightAverage::after_step(const NamedParameters& parameters) {
  if (kind_ != Averaging::ema) return;
  const torch::NoGradGuard without_gradients;
  if (kept_.empty()) {
    kept_.push_back(copies(parameters));
    return;
  }
  std::vector<Tensor> now;
  for (const auto& [name, parameter] : parameters) now.push_back(parameter.detach());
  approach(kept_.front(), now, 1 - decay_);
}

void WeightAverage::note(const NamedParameters& parameters) {
  if (kind_ != Averaging::last) return;
  kept_.push_back(copies(parameters));
  while (static_cast<int64_t>(kept_.size()) > notes_) kept_.pop_front();
}

std::vector<Tensor> WeightAverage::weights() const {
  if (kept_.empty()) return {};
  const torch::NoGradGuard without_gradients;
  std::vector<Tensor> mean;
  for (const Tensor& first : kept_.front()) mean.push_back(first.clone());
  for (size_t note = 1; note < kept_.size(); ++note)
    approach(mean, kept_[note], 1 / static_cast<double>(note + 1));
  return mean;
}

NamedTensors WeightAverage::saved(const NamedParameters& parameters) const {
  NamedTensors tensors;
  for (size_t note = 0; note < kept_.size(); ++note)
    for (size_t i = 0; i < parameters.size(); ++i)
      tensors["average" + std::to_string(note) + "." + parameters[i].first] =
          kept_[note][i];
  return tensors;
}

void WeightAverage::load(const NamedTensors& saved, const NamedParameters& parameters) {
  const torch::NoGradGuard without_gradients;
  kept_.clear();
  if (kind_ == Averaging::none || parameters.empty()) return;
  const auto name = [&](size_t note, size_t i) {
    return "average" + std::to_string(note) + "." + parameters[i].first;
  };
  for (size_t note = 0; saved.contains(name(note, 0)); ++note) {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto found = saved.find(name(note, i));
      require(
          found != saved.end() && found->second.sizes() == parameters[i].second.sizes(),
          "the averaged weights lack ", parameters[i].first,
          " or have it in another shape");
      tensors.push_back(torch::empty_like(parameters[i].second.detach(),
                                          at::MemoryFormat::Contiguous));
      tensors.back().copy_(found->second);
    }
    kept_.push_back(std::move(tensors));
  }
}

}  // namespace longspan
