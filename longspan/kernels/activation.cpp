#include "longspan/kernels/activation.h"

#include <algorithm>
#include <cmath>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/activation_cuda.h"
#include "longspan/kernels/cpu/activation.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kWho[] = "activation: ";

[[noreturn]] void refuse(Activation activation) {
  fail(kWho, "it must be gelu, gelu_tanh or relu, got number ",
       static_cast<int>(activation));
}

// Doubles serve checks of gradients: plain loops will do.
struct Point {
  double value, slope;
};

Point gelu_at(double z) {
  const double below = std::erfc(-z * M_SQRT1_2) / 2;
  const double density = std::exp(-z * z / 2) * M_2_SQRTPI * M_SQRT1_2 / 2;
  return {z * below, below + z * density};
}

Point gelu_tanh_at(double z) {
  constexpr double kLinear = M_2_SQRTPI * M_SQRT2, kCubic = kLinear * 0.044715;
  const double square = std::min(z * z, 1e4);  // the rest has long been 0
  const double e = std::exp(-std::abs(z) * (kLinear + kCubic * square));
  const double below = (z < 0 ? e : 1) / (1 + e);
  const double slope = e / ((1 + e) * (1 + e));
  return {z * below, below + z * slope * (kLinear + 3 * kCubic * square)};
}

Point relu_at(double z) { return {z < 0 ? 0 : z, z <= 0 ? 0.0 : 1.0}; }

template <Point at(double)>
void activate_doubles(const cpu::ActivationRows<double>& rows) {
  for (int64_t row = 0; row < rows.rows; ++row)
    for (int64_t i = 0; i < rows.width; ++i) {
      const int64_t place = row * rows.width + i;
      rows.y[place] = at(rows.x[place] + (rows.bias ? rows.bias[i] : -0.0)).value;
    }
}

template <Point at(double)>
void activate_doubles_gradient(const cpu::ActivationGradientRows<double>& rows) {
  for (int64_t row = 0; row < rows.rows; ++row)
    for (int64_t i = 0; i < rows.width; ++i) {
      const int64_t place = row * rows.width + i;
      const double d =
          rows.dy[place] * at(rows.x[place] + (rows.bias ? rows.bias[i] : -0.0)).slope;
      if (rows.dx) rows.dx[place] = d;
      if (rows.dbias) rows.dbias[i] += d;
    }
}

auto kernel_for(Activation activation, const cpu::ActivationRows<float>&) {
  switch (activation) {
    case Activation::gelu:
      return cpu::pick(cpu::portable::gelu, cpu::avx2::gelu, cpu::avx512::gelu);
    case Activation::gelu_tanh:
      return cpu::pick(cpu::portable::gelu_tanh, cpu::avx2::gelu_tanh,
                       cpu::avx512::gelu_tanh);
    case Activation::relu:
      return cpu::pick(cpu::portable::relu, cpu::avx2::relu, cpu::avx512::relu);
  }
  refuse(activation);
}

auto kernel_for(Activation activation, const cpu::ActivationGradientRows<float>&) {
  switch (activation) {
    case Activation::gelu:
      return cpu::pick(cpu::portable::gelu_gradient, cpu::avx2::gelu_gradient,
                       cpu::avx512::gelu_gradient);
    case Activation::gelu_tanh:
      return cpu::pick(cpu::portable::gelu_tanh_gradient, cpu::avx2::gelu_tanh_gradient,
                       cpu::avx512::gelu_tanh_gradient);
    case Activation::relu:
      return cpu::pick(cpu::portable::relu_gradient, cpu::avx2::relu_gradient,
                       cpu::avx512::relu_gradient);
  }
  refuse(activation);
}

auto kernel_for(Activation activation, const cpu::ActivationRows<double>&) {
  switch (activation) {
    case Activation::gelu: return activate_doubles<gelu_at>;
    case Activation::gelu_tanh: return activate_doubles<gelu_tanh_at>;
    case Activation::relu: return activate_doubles<relu_at>;
  }
  refuse(activation);
}

auto kernel_for(Activation activation, const cpu::ActivationGradientRows<double>&) {
  switch (activation) {
    case Activation::gelu: return activate_doubles_gradient<gelu_at>;
    case Activation::gelu_tanh: return activate_doubles_gradient<gelu_tanh_at>;
    case Activation::relu: return activate_doubles_gradient<relu_at>;
  }
  refuse(activation);
}

// Without a bias the rows of a slice are as good as one, with one end to pad.
template <class Rows>
void join_if_alike(Rows& rows) {
  if (rows.bias) return;
  rows.width *= rows.rows;
  rows.rows = 1;
}

// All of one type and contiguous; the bias may be undefined.
template <class Number>
Tensor forward_as(const Tensor& x, const Tensor& bias, Activation activation) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  Tensor y = torch::empty(x.sizes(), x.options());
  const cpu::ActivationRows<Number> all{.x = pointer<Number>(x),
                                        .bias = pointer<Number>(bias),
                                        .y = pointer<Number>(y),
                                        .width = width};
  const auto kernel = kernel_for(activation, all);
  each_slice(rows, width, [&](int64_t, int64_t first, int64_t count) {
    auto some = all;
    some.x += first * width;
    some.y += first * width;
    some.rows = count;
    join_if_alike(some);
    kernel(some);
  });
  return y;
}

struct Wanted {
  bool dx, dbias;
};

struct Gradients {
  Tensor dx, dbias;
};

template <class Number>
Gradients backward_as(const Tensor& dy, const Tensor& x, const Tensor& bias,
                      Activation activation, Wanted wanted) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  Tensor dx, dbias;
  if (wanted.dx) dx = torch::empty(x.sizes(), x.options());
  if (wanted.dbias) dbias = torch::zeros({slices_of(rows), width}, torch::kDouble);
  Number* const dx_first = pointer<Number>(dx);
  double* const dbias_first = pointer<double>(dbias);

  const cpu::ActivationGradientRows<Number> all{.dy = pointer<Number>(dy),
                                                .x = pointer<Number>(x),
                                                .bias = pointer<Number>(bias),
                                                .width = width};
  const auto kernel = kernel_for(activation, all);
  each_slice(rows, width, [&](int64_t slice, int64_t first, int64_t count) {
    auto some = all;
    some.dy += first * width;
    some.x += first * width;
    some.rows = count;
    if (wanted.dx) some.dx = dx_first + first * width;
    if (wanted.dbias) some.dbias = dbias_first + slice * width;
    join_if_alike(some);
    kernel(some);
  });
  if (wanted.dbias) dbias = sum_of_slices(dbias);
  return {dx, dbias};
}

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& bias,
                        int64_t activation) {
    context->save_for_backward({x, bias});
    context->saved_data["activation"] = activation;
    if constexpr (kHasCuda)
      if (x.is_cuda())
        return activate_cuda(x, unless_none(bias), static_cast<Activation>(activation));
    const auto dtype = inner_dtype(x);
    const auto run = dtype == torch::kDouble ? forward_as<double> : forward_as<float>;
    return run(x.to(dtype).contiguous(), inner(bias, dtype),
               static_cast<Activation>(activation))
        .to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &bias = saved[1];
    const auto activation =
        static_cast<Activation>(context->saved_data["activation"].toInt());
    const Wanted wanted{.dx = context->needs_input_grad(0),
                        .dbias = context->needs_input_grad(1)};
    if constexpr (kHasCuda)
      if (x.is_cuda()) {
        const auto [dx, dbias] =
            activate_gradient_cuda(grads[0], x, unless_none(bias), activation,
                                   {.x = wanted.dx, .bias = wanted.dbias});
        return {dx, dbias, Tensor()};
      }
    const auto dtype = inner_dtype(x);
    const auto run = dtype == torch::kDouble ? backward_as<double> : backward_as<float>;
    const Gradients slopes =
        run(grads[0].to(dtype).contiguous(), x.to(dtype).contiguous(),
            inner(bias, dtype), activation, wanted);
    return {wanted.dx ? slopes.dx.to(x.scalar_type()) : Tensor(),
            wanted.dbias ? slopes.dbias.to(bias.scalar_type()) : Tensor(), Tensor()};
  }
};

void check(const Tensor& x, const Tensor& bias) {
  require(x.defined() && x.dim() >= 1 && x.size(-1) >= 1, kWho,
          "x must be [..., n] with n of 1 or more, got ", shape(x));
  const auto dtype = x.scalar_type();
  require(dtype == torch::kFloat || dtype == torch::kDouble ||
              dtype == torch::kBFloat16 || dtype == torch::kHalf,
          kWho, "x must be float, double, bfloat16 or half, got ", dtype);
  if (!bias.defined()) return;
  require(bias.dim() == 1 && bias.size(0) == x.size(-1), kWho, "bias must be [",
          x.size(-1), "], as wide as x, got ", shape(bias));
  require(bias.scalar_type() == dtype, kWho, "bias must be ", dtype, ", as x is, got ",
          bias.scalar_type(), "; convert one of them");
  require(bias.device() == x.device(), kWho, "bias must be on ", x.device(),
          ", where x is, got ", bias.device());
}

}  // namespace

Tensor activate(const Tensor& x, const Tensor& bias, Activation activation) {
  check(x, bias);
  if (!has_kernels_for(x)) return activate_reference(x, bias, activation);
  return ActivationFunction::apply(
      x, bias.defined() ? bias : torch::empty({0}, x.options()),
      static_cast<int64_t>(activation));
}

Tensor activate_reference(const Tensor& x, const Tensor& bias, Activation activation) {
  check(x, bias);
  const auto dtype = inner_dtype(x);
  Tensor z = x.to(dtype);
  if (bias.defined()) z = z + bias.to(dtype);
  switch (activation) {
    case Activation::gelu: return torch::gelu(z).to(x.scalar_type());
    case Activation::gelu_tanh: return torch::gelu(z, "tanh").to(x.scalar_type());
    case Activation::relu: return torch::relu(z).to(x.scalar_type());
  }
  refuse(activation);
}

Tensor sigmoid(const Tensor& x) {
  const auto dtype = inner_dtype(x);
  // Where e^-x is still finite, as gradients need it.
  const double least = dtype == torch::kDouble ? -700 : -80;
  return (1 + x.to(dtype).clamp_min(least).neg().exp())
      .reciprocal()
      .to(x.scalar_type());
}

Tensor softplus(const Tensor& x, double sharpness) {
  constexpr double kLeast = -1000;  // e^-1000 is 0; from -inf `most` would be no number
  const Tensor y = (x.to(inner_dtype(x)) * sharpness).clamp_min(kLeast), size = y.abs();
  // Not max(y, 0), whose slope at 0 is none.
  const Tensor most = (y + size) / 2;
  return ((most + size.neg().exp().log1p()) / sharpness).to(x.scalar_type());
}

}  // namespace longspan
