#include "longspan/cli/kernel_cases_torch.h"

#include <torch/version.h>

#include "longspan/base/error.h"
#include "longspan/kernels/torch_attention.h"

#ifdef LONGSPAN_TORCH_HAS_ATTENTION
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#endif

namespace longspan::cli {

#ifdef LONGSPAN_TORCH_HAS_ATTENTION

namespace {

using torch::Tensor;
using Step = std::function<Tensors()>;

constexpr double kNoDropout = 0;

Tensors listed(const std::tuple<Tensor, Tensor, Tensor>& gradients) {
  const auto& [q, k, v] = gradients;
  return {q, k, v};
}

Step flash(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slope,
           const TorchProblem& problem) {
  const auto forward = [=, causal = problem.causal] {
    return at::_scaled_dot_product_flash_attention(q, k, v, kNoDropout, causal);
  };
  if (!problem.backward) return [=] { return Tensors{std::get<0>(forward())}; };
  return [=, causal = problem.causal, given = forward()] {
    const auto& [out, lse, query_starts, key_starts, most_queries, most_keys, seed,
                 offset, unused] = given;
    return listed(at::_scaled_dot_product_flash_attention_backward(
        slope, q, k, v, out, lse, query_starts, key_starts, q.size(2), k.size(2),
        kNoDropout, causal, seed, offset));
  };
}

// Flash takes windows only below SDPA, with tensors [B, N, H, d].
Step flash_window(const Tensor& q, const Tensor& k, const Tensor& v,
                  const Tensor& slope, const TorchProblem& problem) {
  const auto turned = [](const Tensor& x) { return x.transpose(1, 2); };
  const Tensor tq = turned(q), tk = turned(k), tv = turned(v), tslope = turned(slope);
  const int64_t queries = q.size(2), keys = k.size(2), window = problem.window;
  const auto forward = [=] {
    return at::_flash_attention_forward(tq, tk, tv, {}, {}, queries, keys, kNoDropout,
                                        /*is_causal=*/false,
                                        /*return_debug_mask=*/false, {}, window,
                                        window);
  };
  if (!problem.backward) return [=] { return Tensors{turned(std::get<0>(forward()))}; };
  return [=, given = forward()] {
    const auto& [out, lse, random, unused, mask] = given;
    Tensors gradients = listed(at::_flash_attention_backward(
        tslope, tq, tk, tv, out, lse, {}, {}, queries, keys, kNoDropout,
        /*is_causal=*/false, random, unused, {}, window, window));
    for (Tensor& gradient : gradients) gradient = turned(gradient);
    return gradients;
  };
}

Step cudnn(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slope,
           const TorchProblem& problem) {
  const auto forward = [=](bool with_lse) {
    return at::_scaled_dot_product_cudnn_attention(q, k, v, {}, with_lse, kNoDropout,
                                                   problem.causal);
  };
  if (!problem.backward)
    return [=] { return Tensors{std::get<0>(forward(/*with_lse=*/true))}; };
  return [=, given = forward(/*with_lse=*/true)] {
    const auto& [out, lse, query_starts, key_starts, most_queries, most_keys, seed,
                 offset, mask] = given;
    return listed(at::_scaled_dot_product_cudnn_attention_backward(
        slope, q, k, v, out, lse, seed, offset, {}, query_starts, key_starts, q.size(2),
        k.size(2), kNoDropout, problem.causal));
  };
}

Step efficient(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slope,
               const TorchProblem& problem) {
  const auto forward = [=] {
    return at::_scaled_dot_product_efficient_attention(
        q, k, v, {}, /*compute_log_sumexp=*/true, kNoDropout, problem.causal);
  };
  if (!problem.backward) return [=] { return Tensors{std::get<0>(forward())}; };
  return [=, given = forward()] {
    const auto& [out, lse, seed, offset] = given;
    const auto gradients = at::_scaled_dot_product_efficient_attention_backward(
        slope, q, k, v, {}, out, lse, seed, offset, kNoDropout,
        {true, true, true, false}, problem.causal);
    return Tensors{std::get<0>(gradients), std::get<1>(gradients),
                   std::get<2>(gradients)};
  };
}

}  // namespace

Step torch_step(TorchAttention kernel, const Tensors& qkv, const Tensor& slope,
                const TorchProblem& problem) {
  const torch::NoGradGuard without_gradients;
  const Tensor &q = qkv[0], &k = qkv[1], &v = qkv[2];
  const bool windowed = problem.window > 0;
  require(!windowed || kernel == TorchAttention::flash,
          "of LibTorch's kernels only flash has windows");
  switch (kernel) {
    case TorchAttention::flash:
      return windowed ? flash_window(q, k, v, slope, problem)
                      : flash(q, k, v, slope, problem);
    case TorchAttention::cudnn: return cudnn(q, k, v, slope, problem);
    case TorchAttention::efficient: return efficient(q, k, v, slope, problem);
  }
  TORCH_INTERNAL_ASSERT(false);
}

#else

std::function<Tensors()> torch_step(TorchAttention, const Tensors&,
                                    const torch::Tensor&, const TorchProblem&) {
  fail("LibTorch ", TORCH_VERSION, " has no attention of its own; 2.5 has");
}

#endif

}  // namespace longspan::cli
