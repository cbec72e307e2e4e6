#include "longspan/kernels/activation_cuda.h"

#include "longspan/base/error.h"
#include "longspan/kernels/cuda/activation.h"
#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kWho[] = "activation";

cuda::Curve curve_of(Activation activation) {
  switch (activation) {
    case Activation::gelu: return cuda::Curve::kGelu;
    case Activation::gelu_tanh: return cuda::Curve::kGeluTanh;
    case Activation::relu: return cuda::Curve::kRelu;
  }
  fail(kWho, ": it must be gelu, gelu_tanh or relu, got number ",
       static_cast<int>(activation));
}

Tensor dense(const Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

}  // namespace

Tensor activate_cuda(const Tensor& x, const Tensor& bias, Activation activation) {
  const cuda::Curve curve = curve_of(activation);
  const Tensor from = x.contiguous(), offset = dense(bias);
  Tensor y = torch::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
    return cuda::activate({.type = cuda::cuda_type(x),
                           .curve = curve,
                           .x = from.data_ptr(),
                           .bias = cuda::data_of(offset),
                           .y = y.data_ptr(),
                           .rows = x.numel() / x.size(-1),
                           .width = x.size(-1)},
                          stream);
  });
  return y;
}

ActivationSlopes activate_gradient_cuda(const Tensor& slope, const Tensor& x,
                                        const Tensor& bias, Activation activation,
                                        ActivationWanted wanted) {
  ActivationSlopes result;
  if (wanted.x) result.x = torch::empty(x.sizes(), x.options());
  if (x.numel() == 0) {
    if (wanted.bias) result.bias = torch::zeros_like(bias);
    return result;
  }
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const cuda::Type type = cuda::cuda_type(x);
  Tensor chunks;
  if (wanted.bias) {
    result.bias = torch::empty({width}, x.options());
    chunks = torch::empty({cuda::activation_chunks(type, rows, width), width},
                          x.options().dtype(inner_dtype(x)));
  }
  const Tensor from = x.contiguous(), slopes = slope.contiguous(), offset = dense(bias);
  cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
    return cuda::activate_gradient({.type = type,
                                    .curve = curve_of(activation),
                                    .y_slope = slopes.data_ptr(),
                                    .x = from.data_ptr(),
                                    .bias = cuda::data_of(offset),
                                    .x_slope = cuda::data_of(result.x),
                                    .bias_slope = cuda::data_of(result.bias),
                                    .chunks = cuda::data_of(chunks),
                                    .rows = rows,
                                    .width = width},
                                   stream);
  });
  return result;
}

}  // namespace longspan
