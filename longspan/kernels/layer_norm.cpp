#include "longspan/kernels/layer_norm.h"

#include <cmath>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/layer_norm.h"
#include "longspan/kernels/layer_norm_cuda.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kWho[] = "layer norm: ";

// Doubles serve checks of gradients: plain loops will do.
void norm_doubles(const cpu::LayerNormRows<double>& rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    const double* x = rows.x + row * rows.width;
    double* y = rows.y + row * rows.width;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < rows.width; ++i) mean += x[i] / rows.width;
    for (int64_t i = 0; i < rows.width; ++i)
      variance += (x[i] - mean) * (x[i] - mean) / rows.width;
    const double rstd = 1 / std::sqrt(variance + rows.epsilon);
    rows.mean[row] = mean;
    rows.rstd[row] = rstd;
    for (int64_t i = 0; i < rows.width; ++i)
      y[i] = (x[i] - mean) * rstd * (rows.weight ? rows.weight[i] : 1) +
             (rows.bias ? rows.bias[i] : 0);
  }
}

void norm_doubles_gradient(const cpu::LayerNormGradientRows<double>& rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    const double* x = rows.x + row * rows.width;
    const double* dy = rows.dy + row * rows.width;
    const double mean = rows.mean[row], rstd = rows.rstd[row];
    const auto z = [&](int64_t i) { return (x[i] - mean) * rstd; };
    const auto g = [&](int64_t i) {
      return rows.weight ? dy[i] * rows.weight[i] : dy[i];
    };
    double g_average = 0, gz_average = 0;
    for (int64_t i = 0; i < rows.width; ++i) {
      if (rows.dbias) rows.dbias[i] += dy[i];
      if (rows.dweight) rows.dweight[i] += dy[i] * z(i);
      g_average += g(i) / rows.width;
      gz_average += g(i) * z(i) / rows.width;
    }
    if (!rows.dx) continue;
    for (int64_t i = 0; i < rows.width; ++i)
      rows.dx[row * rows.width + i] = (g(i) - g_average - z(i) * gz_average) * rstd;
  }
}

auto kernel_for(const cpu::LayerNormRows<float>&) {
  return cpu::pick(cpu::portable::layer_norm, cpu::avx2::layer_norm,
                   cpu::avx512::layer_norm);
}
auto kernel_for(const cpu::LayerNormGradientRows<float>&) {
  return cpu::pick(cpu::portable::layer_norm_gradient, cpu::avx2::layer_norm_gradient,
                   cpu::avx512::layer_norm_gradient);
}
auto kernel_for(const cpu::LayerNormRows<double>&) { return norm_doubles; }
auto kernel_for(const cpu::LayerNormGradientRows<double>&) {
  return norm_doubles_gradient;
}

// All of one type and contiguous; weight and bias may be undefined.
template <class Number>
NormedRows forward_as(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      double epsilon) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const NormedRows result{torch::empty(x.sizes(), x.options()),
                          torch::empty({rows}, torch::kDouble),
                          torch::empty({rows}, x.options())};
  const cpu::LayerNormRows<Number> all{.x = pointer<Number>(x),
                                       .weight = pointer<Number>(weight),
                                       .bias = pointer<Number>(bias),
                                       .y = result.y.data_ptr<Number>(),
                                       .mean = result.mean.data_ptr<double>(),
                                       .rstd = result.rstd.data_ptr<Number>(),
                                       .rows = rows,
                                       .width = width,
                                       .epsilon = static_cast<Number>(epsilon)};
  const auto kernel = kernel_for(all);
  each_slice(rows, width, [&](int64_t, int64_t first, int64_t count) {
    auto some = all;
    some.x += first * width;
    some.y += first * width;
    some.mean += first;
    some.rstd += first;
    some.rows = count;
    kernel(some);
  });
  return result;
}

template <class Number>
LayerNormSlopes backward_as(const Tensor& dy, const Tensor& x, const Tensor& weight,
                            const Tensor& mean, const Tensor& rstd,
                            LayerNormWanted wanted) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const int64_t slices = slices_of(rows);
  Tensor dx, dweight, dbias;
  if (wanted.x) dx = torch::empty(x.sizes(), x.options());
  if (wanted.weight) dweight = torch::zeros({slices, width}, torch::kDouble);
  if (wanted.bias) dbias = torch::zeros({slices, width}, torch::kDouble);
  Number* const dx_first = pointer<Number>(dx);
  double* const dweight_first = pointer<double>(dweight);
  double* const dbias_first = pointer<double>(dbias);

  const cpu::LayerNormGradientRows<Number> all{.dy = pointer<Number>(dy),
                                               .x = pointer<Number>(x),
                                               .weight = pointer<Number>(weight),
                                               .mean = pointer<double>(mean),
                                               .rstd = pointer<Number>(rstd),
                                               .width = width};
  const auto kernel = kernel_for(all);
  each_slice(rows, width, [&](int64_t slice, int64_t first, int64_t count) {
    auto some = all;
    some.dy += first * width;
    some.x += first * width;
    some.mean += first;
    some.rstd += first;
    some.rows = count;
    if (wanted.x) some.dx = dx_first + first * width;
    if (wanted.weight) some.dweight = dweight_first + slice * width;
    if (wanted.bias) some.dbias = dbias_first + slice * width;
    kernel(some);
  });
  if (wanted.weight) dweight = sum_of_slices(dweight);
  if (wanted.bias) dbias = sum_of_slices(dbias);
  return {dx, dweight, dbias};
}

NormedRows normed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  double epsilon) {
  if constexpr (kHasCuda)
    if (x.is_cuda())
      return layer_norm_cuda(x, unless_none(weight), unless_none(bias), epsilon);
  const auto dtype = inner_dtype(x);
  const auto run = dtype == torch::kDouble ? forward_as<double> : forward_as<float>;
  NormedRows result =
      run(x.to(dtype).contiguous(), inner(weight, dtype), inner(bias, dtype), epsilon);
  result.y = result.y.to(x.scalar_type());
  return result;
}

// `saved`: x, weight, mean and rstd.
LayerNormSlopes slopes_of(const Tensor& dy, const variable_list& saved,
                          torch::Dtype bias_dtype, LayerNormWanted wanted) {
  const Tensor &x = saved[0], &weight = saved[1];
  if constexpr (kHasCuda)
    if (x.is_cuda()) {
      const auto dtype = x.scalar_type();
      const bool wide = weight.scalar_type() != dtype || bias_dtype != dtype;
      return layer_norm_gradient_cuda(dy, x, unless_none(weight), wide, saved[2],
                                      saved[3], wanted);
    }
  const auto dtype = inner_dtype(x);
  const auto run = dtype == torch::kDouble ? backward_as<double> : backward_as<float>;
  LayerNormSlopes slopes = run(dy.to(dtype).contiguous(), x.to(dtype).contiguous(),
                               inner(weight, dtype), saved[2], saved[3], wanted);
  if (wanted.x) slopes.x = slopes.x.to(x.scalar_type());
  return slopes;
}

class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, double epsilon) {
    const NormedRows result = normed(x, weight, bias, epsilon);
    context->save_for_backward({x, weight, result.mean, result.rstd});
    context->saved_data["bias_dtype"] = static_cast<int64_t>(bias.scalar_type());
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor& weight = saved[1];
    const auto bias_dtype =
        static_cast<torch::Dtype>(context->saved_data["bias_dtype"].toInt());
    const LayerNormWanted wanted{.x = context->needs_input_grad(0),
                                 .weight = context->needs_input_grad(1),
                                 .bias = context->needs_input_grad(2)};
    const LayerNormSlopes slopes = slopes_of(grads[0], saved, bias_dtype, wanted);
    return {slopes.x, wanted.weight ? slopes.weight.to(weight.scalar_type()) : Tensor(),
            wanted.bias ? slopes.bias.to(bias_dtype) : Tensor(), Tensor()};
  }
};

bool is_short(torch::Dtype dtype) {
  return dtype == torch::kBFloat16 || dtype == torch::kHalf;
}

void check(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  require(x.defined() && x.dim() >= 1 && x.size(-1) >= 1, kWho,
          "x must be [..., E] with E of 1 or more, got ", shape(x));
  const auto dtype = x.scalar_type();
  require(dtype == torch::kFloat || dtype == torch::kDouble || is_short(dtype), kWho,
          "x must be float, double, bfloat16 or half, got ", dtype);
  require(epsilon >= 0, kWho, "epsilon must be 0 or more, got ", epsilon);
  const auto check_one = [&](const Tensor& tensor, const char* name) {
    if (!tensor.defined()) return;
    require(tensor.dim() == 1 && tensor.size(0) == x.size(-1), kWho, name, " must be [",
            x.size(-1), "], as wide as x, got ", shape(tensor));
    require(tensor.scalar_type() == dtype ||
                (is_short(dtype) && tensor.scalar_type() == torch::kFloat),
            kWho, name, " must be ", dtype, is_short(dtype) ? " or Float" : "",
            " where x is ", dtype, ", got ", tensor.scalar_type(),
            "; convert one of them");
    require(tensor.device() == x.device(), kWho, name, " must be on ", x.device(),
            ", where x is, got ", tensor.device());
  };
  check_one(weight, "weight");
  check_one(bias, "bias");
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  double epsilon) {
  check(x, weight, bias, epsilon);
  if (!has_kernels_for(x)) return layer_norm_reference(x, weight, bias, epsilon);
  const Tensor none = torch::empty({0}, x.options());
  return LayerNormFunction::apply(x, weight.defined() ? weight : none,
                                  bias.defined() ? bias : none, epsilon);
}

Tensor layer_norm_reference(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            double epsilon) {
  check(x, weight, bias, epsilon);
  const auto dtype = inner_dtype(x);
  const Tensor inside = x.to(dtype);
  const Tensor centred = inside - inside.mean(-1, /*keepdim=*/true);
  Tensor y = centred * (centred.square().mean(-1, /*keepdim=*/true) + epsilon).rsqrt();
  if (weight.defined()) y = y * weight.to(dtype);
  if (bias.defined()) y = y + bias.to(dtype);
  return y.to(x.scalar_type());
}

}  // namespace longspan
