// What the tests share: inputs, and ways of saying "equal enough".

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"

namespace longspan::testing {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// `count` normal tensors of one shape, always the same for one seed.
inline Tensors random_tensors(int count, at::IntArrayRef shape,
                              torch::Dtype dtype = torch::kDouble, uint64_t seed = 0) {
  torch::manual_seed(seed);
  Tensors tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(torch::randn(shape, dtype));
  return tensors;
}

inline double largest_error(const Tensor& got, const Tensor& exact) {
  if (got.numel() == 0) return 0;
  return (got.to(torch::kDouble).cpu() - exact.to(torch::kDouble).cpu())
      .abs()
      .max()
      .item<double>();
}

// Largest difference at most `tolerance` times the largest value; NaN is never close,
// equal infinities are.
inline ::testing::AssertionResult close(const Tensor& got, const Tensor& expected,
                                        double tolerance = 1e-10) {
  if (got.sizes() != expected.sizes())
    return ::testing::AssertionFailure()
           << "shape " << got.sizes() << ", expected " << expected.sizes();
  if (got.numel() == 0) return ::testing::AssertionSuccess();
  const auto a = got.detach().to(torch::kDouble).cpu();
  const auto b = expected.detach().to(torch::kDouble).cpu();
  const auto same = a == b;  // also infinities
  const double scale =
      torch::where(b.isfinite(), b, torch::zeros_like(b)).abs().max().item<double>();
  const double error =
      torch::where(same, torch::zeros_like(a), a - b).abs().max().item<double>();
  if (error <= tolerance * (scale + 1e-30)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "off by " << error << " where values reach " << scale;
}

// A fused result may be off by at most twice what plain operations in the same
// precision are off by; `exact` is the plain result in double.
inline ::testing::AssertionResult about_as_exact(const Tensor& fused,
                                                 const Tensor& plain,
                                                 const Tensor& exact) {
  const double error = largest_error(fused, exact);
  const double allowed = 2 * largest_error(plain, exact) + 1e-7;
  if (error <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "fused is off by " << error << ", plain operations by "
         << largest_error(plain, exact);
}

// Compares backward() of a function of double tensors with central differences along
// random directions. The function may return several outputs; all have gradients.
inline ::testing::AssertionResult gradients_agree(
    const std::function<Tensors(const Tensors&)>& f, const Tensors& at,
    double tolerance = 1e-6) {
  constexpr double kStep = 1e-5;
  constexpr int kDirections = 4;

  Tensors inputs;
  for (const auto& x : at) inputs.push_back(x.detach().clone().requires_grad_());
  const Tensors outs = f(inputs);
  Tensors weights;  // make it a scalar
  for (const auto& out : outs) weights.push_back(torch::randn_like(out));
  const Tensors slopes = torch::autograd::grad(outs, inputs, weights);

  torch::NoGradGuard measuring;
  const auto weighed = [&](const Tensors& x) {
    double total = 0;
    const Tensors y = f(x);
    for (size_t i = 0; i < y.size(); ++i)
      total += (y[i] * weights[i]).sum().item<double>();
    return total;
  };
  for (int direction = 0; direction < kDirections; ++direction) {
    Tensors up, down;
    double analytic = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      const Tensor step = torch::randn_like(at[i]);
      analytic += (slopes[i] * step).sum().item<double>();
      up.push_back(at[i] + kStep * step);
      down.push_back(at[i] - kStep * step);
    }
    const double numeric = (weighed(up) - weighed(down)) / (2 * kStep);
    if (!(std::abs(numeric - analytic) <= tolerance * (1 + std::abs(numeric))))
      return ::testing::AssertionFailure()
             << "backward gives " << analytic << ", differences give " << numeric;
  }
  return ::testing::AssertionSuccess();
}

// The message of the Error that `action` throws, or "accepted".
inline std::string refusal(const std::function<void()>& action) {
  try {
    action();
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

// The devices this build and machine have.
inline std::vector<torch::Device> devices() {
  std::vector<torch::Device> all = {torch::kCPU};
  if (kHasCuda && torch::cuda::is_available()) all.emplace_back(torch::kCUDA, 0);
  return all;
}

// The low precisions in which LibTorch multiplies matrices there.
inline std::vector<torch::Dtype> low_precisions(torch::Device device) {
  if (device.is_cpu()) return {torch::kBFloat16};
  return {torch::kBFloat16, torch::kHalf};
}

}  // namespace longspan::testing
