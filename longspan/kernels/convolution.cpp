#include "longspan/kernels/convolution.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sums of a window that slides over the tokens, as products of matrices: the tokens
// stand in blocks, and a block of sums is a band matrix times its block of tokens and
// the next one.
class Sliding {
 public:
  Sliding(int64_t tokens, int64_t kernel)
      : tokens_(tokens),
        kernel_(kernel),
        block_(std::max<int64_t>(32, kernel - 1)),
        blocks_((tokens + block_ - 1) / block_) {}

  // out[b, g*O + o, n] = sum of weight[g, o, i, t] x[b, g*I + i, n + t - T/2] over i
  // and t, for x [B, G*I, N, w], 0 outside, and weight [G, O, I, T], T odd.
  Tensor sums(const Tensor& x, const Tensor& weight) const {
    const int64_t examples = x.size(0), groups = weight.size(0), outs = weight.size(1),
                  ins = weight.size(2), width = x.size(3);
    const Tensor bands = longspan::matmul(weight.reshape({-1, kernel_}), band(weight))
                             .view({groups, outs, ins, block_, 2 * block_})
                             .permute({0, 1, 3, 2, 4})
                             .reshape({1, groups, outs * block_, ins * 2 * block_});
    return longspan::matmul(bands, windows(x, groups))
        .view({examples, groups, outs, block_, blocks_, width})
        .permute({0, 1, 2, 4, 3, 5})
        .reshape({examples, groups * outs, blocks_ * block_, width})
        .slice(2, 0, tokens_);
  }

  // The gradient of weight [G, O, 1, T], as [G*O, T], from that of out.
  Tensor weight_gradient(const Tensor& x, const Tensor& slope) const {
    const int64_t groups = x.size(1), outs = slope.size(1) / groups, width = x.size(3);
    const Tensor rows =
        in_blocks(slope, 0, blocks_)
            .reshape({slope.size(0), groups, outs * block_, blocks_ * width});
    const Tensor each = longspan::matmul(rows, windows(x, groups).transpose(2, 3));
    const auto wide =
        x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const Tensor all =
        longspan::sum_to(each.to(wide), {1, groups, outs * block_, 2 * block_});
    return longspan::matmul(all.view({groups * outs, block_ * 2 * block_}),
                            band(all).t())
        .to(x.scalar_type());
  }

 private:
  // [T, block * 2*block]: 1 where weight t takes a token to a sum.
  Tensor band(const Tensor& like) const {
    const auto whole = like.options().dtype(torch::kLong).requires_grad(false);
    const Tensor to = torch::arange(block_, whole).view({1, -1, 1}),
                 from = torch::arange(2 * block_, whole).view({1, 1, -1}),
                 t = torch::arange(kernel_, whole).view({-1, 1, 1});
    return (from == to + t).flatten(1).to(like.scalar_type());
  }

  // x [B, h, N, w] with zeros, `before` in front and behind up to so many blocks:
  // [B, h, block, blocks, w].
  Tensor in_blocks(const Tensor& x, int64_t before, int64_t blocks) const {
    const int64_t behind = blocks * block_ - tokens_ - before;
    return torch::constant_pad_nd(x, {0, 0, before, behind})
        .view({x.size(0), x.size(1), blocks, block_, x.size(3)})
        .transpose(2, 3);
  }

  // x [B, G*I, N, w]: what each block of sums is made of, in columns,
  // [B, G, I * 2*block, blocks*w].
  Tensor windows(const Tensor& x, int64_t groups) const {
    const Tensor all = in_blocks(x, kernel_ / 2, blocks_ + 1);
    return torch::cat({all.slice(3, 0, blocks_), all.slice(3, 1)}, 2)
        .view(
            {x.size(0), groups, x.size(1) / groups * 2 * block_, blocks_ * x.size(3)});
  }

  int64_t tokens_, kernel_, block_, blocks_;
};

// Keeps nothing but its inputs: v [B, Hk, N, dv], weight [H, T], T odd.
class ConvolutionFunction : public torch::autograd::Function<ConvolutionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& v,
                        const Tensor& weight) {
    context->save_for_backward({v, weight});
    const int64_t heads = v.size(1), kernel = weight.size(1);
    return Sliding(v.size(2), kernel).sums(v, weight.view({heads, -1, 1, kernel}));
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &v = saved[0], &weight = saved[1];
    const int64_t heads = v.size(1), kernel = weight.size(1);
    const Sliding sliding(v.size(2), kernel);
    variable_list gradients(2);
    if (context->needs_input_grad(0))
      gradients[0] =
          sliding.sums(slopes[0], weight.flip(1).view({heads, 1, -1, kernel}));
    if (context->needs_input_grad(1))
      gradients[1] = sliding.weight_gradient(v, slopes[0]);
    return gradients;
  }
};

}  // namespace

Tensor convolution(const Tensor& v, const Tensor& weight) {
  require(v.dim() == 4 && weight.dim() == 2 && weight.size(0) % v.size(1) == 0 &&
              weight.size(1) % 2 == 1,
          "convolution: v and weight must be [B, Hk, N, w] and [H, T], T odd and Hk a ",
          "divisor of H, got ", shape(v), " and ", shape(weight));
  const Flops counted(2 * v.numel() / v.size(1) * weight.numel());
  return ConvolutionFunction::apply(v, weight);
}

Tensor convolution_reference(const Tensor& v, const Tensor& weight) {
  const int64_t tokens = v.size(2), reach = weight.size(1) / 2;
  const Tensor padded = torch::constant_pad_nd(
      v.repeat_interleave(weight.size(0) / v.size(1), 1), {0, 0, reach, reach});
  Tensor out = torch::zeros_like(padded.slice(2, 0, tokens));
  for (int64_t t = 0; t <= 2 * reach; ++t)
    out = out + weight.slice(1, t, t + 1).unsqueeze(2) * padded.slice(2, t, t + tokens);
  return out;
}

}  // namespace longspan
