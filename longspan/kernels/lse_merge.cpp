#include "longspan/kernels/lse_merge.h"

#include <algorithm>
#include <limits>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/lse_merge.h"
#include "longspan/kernels/cuda/lse_merge.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/lse_merge_cuda.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The parts as the kernels take them.
struct Parts {
  std::vector<Tensor> outs, lses;

  // `tensors`: the outs, then as many lses.
  Parts(at::TensorList tensors, torch::Dtype dtype) {
    const size_t count = tensors.size() / 2;
    for (size_t i = 0; i < count; ++i) {
      outs.push_back(unit_stride(tensors[i], dtype));
      lses.push_back(tensors[count + i].to(dtype).contiguous());
    }
  }

  size_t size() const { return outs.size(); }

  template <class Number>
  std::vector<cpu::LseMergePart<Number>> at(int64_t example, int64_t head,
                                            int64_t row) const {
    std::vector<cpu::LseMergePart<Number>> all;
    all.reserve(size());
    for (size_t i = 0; i < size(); ++i)
      all.push_back({.out = head_of<Number>(outs[i], example, head, row),
                     .out_stride = outs[i].stride(2),
                     .lse = head_of<Number>(lses[i], example, head, row)});
    return all;
  }
};

template <class Number>
Attended forward_as(const Parts& parts) {
  const Tensor& like = parts.outs.front();
  const Attended merged{.out = torch::empty(like.sizes(), like.options()),
                        .lse = torch::empty(like.sizes().slice(0, 3), like.options())};
  const auto kernel = cpu::pick<cpu::LseMerge<Number>>(
      cpu::portable::lse_merge, cpu::avx2::lse_merge, cpu::avx512::lse_merge);
  each_slice_of_heads(
      like, like.size(2), like.size(3),
      [&](int64_t example, int64_t head, int64_t first, int64_t count) {
        const auto some = parts.at<Number>(example, head, first);
        std::vector<Number> weights(some.size() * count);
        kernel({.parts = some.data(),
                .part_count = static_cast<int64_t>(some.size()),
                .weights = weights.data(),
                .out = head_of<Number>(merged.out, example, head, first),
                .lse = head_of<Number>(merged.lse, example, head, first),
                .rows = count,
                .width = like.size(3),
                .past_caches = is_beyond_caches(merged.out)});
      });
  return merged;
}

// Gradients of the outs, then of the lses; those of the wrong `wanted` are undefined.
template <class Number>
variable_list backward_as(const Parts& parts, const Tensor& dout, const Tensor& dlse,
                          const std::vector<bool>& wanted) {
  const size_t part_count = parts.size();
  variable_list slopes(2 * part_count);
  for (size_t i = 0; i < slopes.size(); ++i) {
    const Tensor& like = i < part_count ? parts.outs[i] : parts.lses[i - part_count];
    if (wanted[i]) slopes[i] = torch::empty(like.sizes(), like.options());
  }
  const auto kernel = cpu::pick<cpu::LseMergeGradient<Number>>(
      cpu::portable::lse_merge_gradient, cpu::avx2::lse_merge_gradient,
      cpu::avx512::lse_merge_gradient);
  each_slice_of_heads(
      dout, dout.size(2), dout.size(3),
      [&](int64_t example, int64_t head, int64_t first, int64_t count) {
        const auto some = parts.at<Number>(example, head, first);
        std::vector<cpu::LseMergePartGradient<Number>> gradients;
        for (size_t i = 0; i < part_count; ++i)
          gradients.push_back(
              {.out = head_of<Number>(slopes[i], example, head, first),
               .lse = head_of<Number>(slopes[part_count + i], example, head, first)});
        std::vector<Number> weights(part_count * count);
        kernel({.parts = some.data(),
                .gradients = gradients.data(),
                .part_count = static_cast<int64_t>(part_count),
                .weights = weights.data(),
                .dout = head_of<Number>(dout, example, head, first),
                .dout_stride = dout.stride(2),
                .dlse = head_of<Number>(dlse, example, head, first),
                .rows = count,
                .width = dout.size(3),
                .past_caches = is_beyond_caches(dout)});
      });
  return slopes;
}

// `tensors`: the outs, then as many lses.
std::vector<Attended> attended_of(at::TensorList tensors) {
  const size_t count = tensors.size() / 2;
  std::vector<Attended> parts;
  for (size_t i = 0; i < count; ++i)
    parts.push_back({.out = tensors[i], .lse = tensors[count + i]});
  return parts;
}

// Gradients of the outs, then of the lses.
variable_list backward_on_cuda(const variable_list& tensors, const Attended& slopes,
                               const std::vector<bool>& wanted) {
  const auto parts = attended_of(tensors);
  std::vector<MergeWanted> of_parts;
  for (size_t i = 0; i < parts.size(); ++i)
    of_parts.push_back({.out = wanted[i], .lse = wanted[parts.size() + i]});
  variable_list gradients(tensors.size());
  if constexpr (kHasCuda) {
    const auto results = merge_gradient_cuda(parts, slopes, of_parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      gradients[i] = results[i].out;
      gradients[parts.size() + i] = results[i].lse;
    }
  }
  return gradients;
}

class MergeFunction : public torch::autograd::Function<MergeFunction> {
 public:
  // `parts`: the outs, then as many lses.
  static variable_list forward(AutogradContext* context, at::TensorList parts) {
    context->save_for_backward(parts.vec());
    if constexpr (kHasCuda)
      if (parts.front().is_cuda()) {
        const Attended merged = merge_cuda(attended_of(parts));
        return {merged.out, merged.lse};
      }
    const auto dtype = inner_dtype(parts.front());
    const auto run = dtype == torch::kDouble ? forward_as<double> : forward_as<float>;
    const Attended merged = run(Parts(parts, dtype));
    return {merged.out.to(parts.front().scalar_type()), merged.lse};
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    require(!torch::GradMode::is_enabled(),
            "merge: it has no second derivatives; merge_reference() has");
    const variable_list parts = context->get_saved_variables();
    const auto dtype = inner_dtype(parts.front());
    std::vector<bool> wanted;
    for (size_t i = 0; i < parts.size(); ++i)
      wanted.push_back(context->needs_input_grad(i));
    variable_list gradients;
    if (parts.front().is_cuda()) {
      gradients = backward_on_cuda(parts, {.out = slopes[0], .lse = slopes[1]}, wanted);
    } else {
      const auto run =
          dtype == torch::kDouble ? backward_as<double> : backward_as<float>;
      gradients = run(Parts(parts, dtype), unit_stride(slopes[0], dtype),
                      slopes[1].to(dtype).contiguous(), wanted);
    }
    for (size_t i = 0; i < parts.size(); ++i)
      if (wanted[i]) gradients[i] = gradients[i].to(parts[i].scalar_type());
    return gradients;
  }
};

void check(const std::vector<Attended>& parts) {
  require(!parts.empty(), "merge: there must be at least one part, got none");
  const Tensor& first = parts.front().out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [out, lse] = parts[i];
    require(out.defined() && out.dim() == 4, "merge: out of part ", i,
            " must be [B, H, N, dv], got ", shape(out));
    require(out.is_floating_point(), "merge: out of part ", i,
            " must be floating, got ", out.scalar_type());
    require(out.sizes() == first.sizes(),
            "merge: out of every part must have one shape, got ", shape(first), " and ",
            shape(out));
    require(out.scalar_type() == first.scalar_type(),
            "merge: out of every part must have one dtype, got ", first.scalar_type(),
            " and ", out.scalar_type());
    const auto rows = out.sizes().slice(0, 3);
    require(lse.defined() && lse.sizes() == rows, "merge: lse of part ", i, " must be ",
            rows, ", got ", shape(lse));
    require(lse.is_floating_point(), "merge: lse of part ", i,
            " must be floating, got ", lse.scalar_type());
    require(out.device() == first.device() && lse.device() == first.device(),
            "merge: out and lse of every part must be on one device, got ",
            first.device(), ", and ", out.device(), " and ", lse.device(), " of part ",
            i);
  }
}

// The same in several steps of at most `most` parts.
Attended merge_in_groups(const std::vector<Attended>& parts, size_t most) {
  std::vector<Attended> merged;
  for (size_t i = 0; i < parts.size(); i += most) {
    std::vector<Attended> group;
    for (size_t j = i; j < std::min(i + most, parts.size()); ++j)
      group.push_back(
          {.out = parts[j].out.to(inner_dtype(parts[j].out)), .lse = parts[j].lse});
    merged.push_back(merge(group));
  }
  const Attended all = merge(merged);
  return {.out = all.out.to(parts.front().out.scalar_type()), .lse = all.lse};
}

}  // namespace

Attended merge(const std::vector<Attended>& parts) {
  check(parts);
  const Tensor& first = parts.front().out;
  if (!has_kernels_for(first)) return merge_reference(parts);
  if (first.is_cuda() && parts.size() > cuda::kMostParts)
    return merge_in_groups(parts, cuda::kMostParts);
  std::vector<Tensor> all;
  for (const auto& part : parts) all.push_back(part.out);
  for (const auto& part : parts) all.push_back(part.lse);
  const variable_list merged = MergeFunction::apply(at::TensorList(all));
  return {.out = merged[0], .lse = merged[1]};
}

Attended merge_reference(const std::vector<Attended>& parts) {
  const auto dtype = parts.front().out.scalar_type();
  const auto precise = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;

  std::vector<Tensor> all;
  for (const auto& part : parts) all.push_back(part.lse.to(precise));
  const Tensor lse = torch::stack(all);  // [parts, B, H, N]
  Tensor max = lse.detach().amax(0);
  max = max.masked_fill(max == -kInfinity, 0);

  const Tensor weights = (lse - max).exp();
  const Tensor total = weights.sum(0);
  const Tensor nothing = total == 0;  // else at least 1
  const Tensor divisor = total.masked_fill(nothing, 1);

  Tensor sum;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor weight = weights[i].unsqueeze(-1);
    // Without weight no value counts, not even one that is not finite.
    const Tensor out = parts[i].out.to(precise).masked_fill(weight == 0, 0);
    sum = sum.defined() ? sum + weight * out : weight * out;
  }
  return {.out = (sum / divisor.unsqueeze(-1)).to(dtype),
          .lse = (max + divisor.log()).masked_fill(nothing, -kInfinity)};
}

}  // namespace longspan
