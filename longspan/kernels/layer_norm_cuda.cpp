#include "longspan/kernels/layer_norm_cuda.h"

#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/layer_norm.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kWho[] = "layer norm";

bool is_wider(const Tensor& tensor, const Tensor& x) {
  return tensor.defined() && tensor.scalar_type() != x.scalar_type();
}

// What weight and bias are given as.
torch::Dtype parameter_dtype(const Tensor& x, bool wide) {
  return wide ? inner_dtype(x) : x.scalar_type();
}

Tensor parameter(const Tensor& tensor, const Tensor& x, bool wide) {
  return tensor.defined() ? tensor.to(parameter_dtype(x, wide)).contiguous() : tensor;
}

}  // namespace

NormedRows layer_norm_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           double epsilon) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const auto inner_options = x.options().dtype(inner_dtype(x));
  const NormedRows result{torch::empty(x.sizes(), x.options()),
                          torch::empty({rows, 2}, inner_options),
                          torch::empty({rows}, inner_options)};
  if (rows == 0) return result;
  const bool wide = is_wider(weight, x) || is_wider(bias, x);
  const Tensor from = x.contiguous();
  const Tensor factors = parameter(weight, x, wide), offsets = parameter(bias, x, wide);
  cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
    return cuda::layer_norm({.type = cuda::cuda_type(x),
                             .wide = wide,
                             .x = from.data_ptr(),
                             .weight = cuda::data_of(factors),
                             .bias = cuda::data_of(offsets),
                             .epsilon = epsilon,
                             .y = result.y.data_ptr(),
                             .mean = result.mean.data_ptr(),
                             .rstd = result.rstd.data_ptr(),
                             .rows = rows,
                             .width = width},
                            stream);
  });
  return result;
}

LayerNormSlopes layer_norm_gradient_cuda(const Tensor& slope, const Tensor& x,
                                         const Tensor& weight, bool wide,
                                         const Tensor& mean, const Tensor& rstd,
                                         LayerNormWanted wanted) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const cuda::Type type = cuda::cuda_type(x);
  const auto summed = x.options().dtype(parameter_dtype(x, wide));
  LayerNormSlopes result;
  if (wanted.x) result.x = torch::empty(x.sizes(), x.options());
  if (wanted.weight) result.weight = torch::empty({width}, summed);
  if (wanted.bias) result.bias = torch::empty({width}, summed);
  if (rows == 0) {
    if (wanted.weight) result.weight.zero_();
    if (wanted.bias) result.bias.zero_();
    return result;
  }
  Tensor chunks;
  if (wanted.weight || wanted.bias)
    chunks = torch::empty({2, cuda::layer_norm_chunks(type, rows, width), width},
                          mean.options());
  const Tensor from = x.contiguous(), slopes = slope.contiguous();
  const Tensor factors = parameter(weight, x, wide);
  cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
    return cuda::layer_norm_gradient({.type = type,
                                      .wide = wide,
                                      .y_slope = slopes.data_ptr(),
                                      .x = from.data_ptr(),
                                      .weight = cuda::data_of(factors),
                                      .mean = mean.data_ptr(),
                                      .rstd = rstd.data_ptr(),
                                      .x_slope = cuda::data_of(result.x),
                                      .weight_slope = cuda::data_of(result.weight),
                                      .bias_slope = cuda::data_of(result.bias),
                                      .chunks = cuda::data_of(chunks),
                                      .rows = rows,
                                      .width = width},
                                     stream);
  });
  return result;
}

}  // namespace longspan
