#include "longspan/kernels/matmul.h"

#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/shapes.h"
#include "longspan/base/threads.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Up to so many multiplications a BLAS stays on one thread.
constexpr int64_t kOneThread = 1 << 18;

// The tiles of m x n products. Cut smaller while there are too few to share out, but
// not below a size at which a BLAS is still quick. Inside a parallel loop, which has at
// least two tasks, a BLAS stays on one thread.
struct Tiles {
  int64_t rows, columns;  // of a tile
  int64_t down, across;   // how many of them
  bool is_one;            // a large product that cannot be cut

  Tiles(int64_t products, int64_t m, int64_t n, int64_t k)
      : rows(std::min<int64_t>(m, 512)), columns(n) {
    constexpr int64_t kEnough = 16, kLeast = 64;
    const auto count = [&] {
      return products * ((m + rows - 1) / rows) * ((n + columns - 1) / columns);
    };
    while (count() < (rows * columns * k > 2 * kOneThread ? kEnough : 2) &&
           rows * columns * k > kOneThread) {
      int64_t& longer = rows >= columns ? rows : columns;
      if (longer <= (count() == 1 ? 1 : kLeast)) break;
      longer = (longer + 1) / 2;
    }
    down = (m + rows - 1) / rows;
    across = (n + columns - 1) / columns;
    is_one = count() == 1 && m * n * k > kOneThread;
  }
};

// out = a b for [p, m, k] and [p, k, n].
void multiply(const Tensor& out, const Tensor& a, const Tensor& b) {
  const int64_t products = a.size(0), m = a.size(1), k = a.size(2), n = b.size(2);
  const Tiles tiles(products, m, n, k);
  const int64_t each = tiles.down * tiles.across, tasks = products * each;
  const auto compute = [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    const OneBlasThread one_thread;
    for (int64_t task = begin; task < std::min(end, tasks); ++task) {
      const int64_t product = task / each;
      const int64_t row = task % each / tiles.across * tiles.rows;
      const int64_t column = task % tiles.across * tiles.columns;
      auto tile = out.select(0, product)
                      .slice(0, row, row + tiles.rows)
                      .slice(1, column, column + tiles.columns);
      at::mm_out(tile, a.select(0, product).slice(0, row, row + tiles.rows),
                 b.select(0, product).slice(1, column, column + tiles.columns));
    }
  };
  at::parallel_for(0, tiles.is_one ? 2 : tasks, 1, compute);
}

// A BLAS wants one of the two strides to be 1.
Tensor with_unit_stride(const Tensor& x) {
  return x.stride(-1) == 1 || x.stride(-2) == 1 ? x : x.contiguous();
}

Tensor product(const Tensor& a, const Tensor& b) {
  const auto leading =
      at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  const auto full = [&](std::vector<int64_t> shape, int64_t rows, int64_t columns) {
    shape.push_back(rows);
    shape.push_back(columns);
    return shape;
  };
  Tensor out = torch::empty(full(leading, m, n), a.options());
  if (out.numel() == 0) return out;
  if (k == 0) return out.zero_();
  multiply(out.view({-1, m, n}),
           with_unit_stride(a).expand(full(leading, m, k)).reshape({-1, m, k}),
           with_unit_stride(b).expand(full(leading, k, n)).reshape({-1, k, n}));
  return out;
}

class MatmulFunction : public torch::autograd::Function<MatmulFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b) {
    context->save_for_backward({a, b});
    return product(a, b);
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    const auto saved = context->get_saved_variables();
    const Tensor &a = saved[0], &b = saved[1], &slope = slopes[0];
    variable_list gradients(2);
    if (context->needs_input_grad(0))
      gradients[0] =
          longspan::sum_to(longspan::matmul(slope, b.transpose(-1, -2)), a.sizes());
    if (context->needs_input_grad(1))
      gradients[1] =
          longspan::sum_to(longspan::matmul(a.transpose(-1, -2), slope), b.sizes());
    return gradients;
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  require(a.defined() && b.defined() && a.dim() >= 2 && b.dim() >= 2 &&
              a.size(-1) == b.size(-2),
          "matmul: a and b must be [.., m, k] and [.., k, n], got ", shape(a), " and ",
          shape(b));
  require(a.scalar_type() == b.scalar_type() && a.device() == b.device(),
          "matmul: a and b must have one type and device, got ", a.scalar_type(),
          " on ", a.device(), " and ", b.scalar_type(), " on ", b.device());
  const auto leading =
      at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const Flops counted(2 * c10::multiply_integers(leading) * a.size(-2) * a.size(-1) *
                      b.size(-1));
  if (!a.device().is_cpu()) return at::matmul(a, b);
  return MatmulFunction::apply(a, b);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require(x.defined() && weight.defined() && x.dim() >= 1 && weight.dim() == 2 &&
              x.size(-1) == weight.size(1),
          "linear: x and weight must be [.., in] and [out, in], got ", shape(x),
          " and ", shape(weight));
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
          "linear: bias must be [", weight.size(0), "], got ", shape(bias));
  const Flops counted(2 * x.numel() * weight.size(0));
  if (!x.device().is_cpu()) return at::linear(x, weight, bias);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const Tensor rows = longspan::matmul(x.reshape({-1, x.size(-1)}), weight.t());
  return (bias.defined() ? rows + spread(bias, rows.sizes()) : rows).view(sizes);
}

}  // namespace longspan
