#include "longspan/kernels/pool.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/kernels/pool_call.h"
#include "longspan/kernels/pool_cpu.h"
#include "longspan/kernels/pool_cuda.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void refuse_second_gradient() {
  require(!torch::GradMode::is_enabled(),
          "pooling: it has no second derivatives; the reference has");
}

Weighed by_weights(const PoolInputs& inputs, const PoolWhere& where, bool divided) {
  if constexpr (kHasCuda)
    if (inputs.x.is_cuda()) return pool_by_weights_cuda(inputs, where, divided);
  return pool_by_weights_cpu(inputs, where, divided);
}

PoolGradients by_weights_gradient(const PoolInputs& inputs, int64_t tokens,
                                  const PoolWhere& where, const Weighed& result,
                                  const WeighedSlopes& slopes, PoolWanted wanted) {
  if constexpr (kHasCuda)
    if (slopes.out.is_cuda())
      return pool_by_weights_gradient_cuda(inputs, tokens, where, result, slopes,
                                           wanted);
  return pool_by_weights_gradient_cpu(inputs, tokens, where, result, slopes, wanted);
}

Largest largest(const PoolInputs& inputs, const PoolWhere& where, bool with_place) {
  if constexpr (kHasCuda)
    if (inputs.x.is_cuda()) return pool_largest_cuda(inputs, where, with_place);
  return pool_largest_cpu(inputs, where, with_place);
}

Tensor largest_gradient(const Tensor& dout, const Tensor& known, const Tensor& keep,
                        int64_t tokens, const PoolWhere& where) {
  if constexpr (kHasCuda)
    if (dout.is_cuda())
      return pool_largest_gradient_cuda(dout, known, keep, tokens, where);
  return pool_largest_gradient_cpu(dout, known, keep, tokens, where);
}

class WeighedFunction : public torch::autograd::Function<WeighedFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const Tensor& keep, const Tensor& scores,
                               const Tensor& where, bool divided) {
    const Weighed result =
        by_weights({.x = x, .keep = unless_none(keep), .scores = unless_none(scores)},
                   {where}, divided);
    const Tensor out = result.out.to(x.scalar_type());
    const bool with_scores = result.lse.defined();
    // Without scores the gradient of x needs nothing of its values.
    context->save_for_backward({with_scores ? x : or_none({}), keep, scores, where,
                                result.factor, or_none(result.base),
                                with_scores ? result.out : or_none({})});
    context->saved_data["tokens"] = x.size(2);
    return with_scores ? variable_list{out, result.lse} : variable_list{out};
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    refuse_second_gradient();
    const variable_list saved = context->get_saved_variables();
    const PoolInputs inputs{.x = unless_none(saved[0]),
                            .keep = unless_none(saved[1]),
                            .scores = unless_none(saved[2])};
    const Weighed result{.out = unless_none(saved[6]),
                         .factor = saved[4],
                         .base = unless_none(saved[5]),
                         .lse = {}};
    const PoolWanted wanted{.x = context->needs_input_grad(0),
                            .scores = context->needs_input_grad(2)};
    const PoolGradients gradients = by_weights_gradient(
        inputs, context->saved_data["tokens"].toInt(), {saved[3]}, result,
        {.out = slopes[0], .lse = slopes.size() > 1 ? slopes[1] : Tensor()}, wanted);
    return {wanted.x ? gradients.x.to(slopes[0].scalar_type()) : Tensor(), Tensor(),
            wanted.scores ? gradients.scores.to(inputs.scores.scalar_type()) : Tensor(),
            Tensor(), Tensor()};
  }
};

class LargestFunction : public torch::autograd::Function<LargestFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& keep,
                        const Tensor& where) {
    const PoolWhere places{where};
    const Largest result = largest({.x = x, .keep = unless_none(keep)}, places,
                                   /*with_place=*/x.requires_grad());
    const Tensor out = result.out.to(x.scalar_type());
    context->save_for_backward(
        {places.is_spans() ? or_none(result.place) : out, keep, where});
    context->saved_data["tokens"] = x.size(2);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    refuse_second_gradient();
    const variable_list saved = context->get_saved_variables();
    const Tensor dx =
        largest_gradient(slopes[0], saved[0], unless_none(saved[1]),
                         context->saved_data["tokens"].toInt(), {saved[2]});
    return {dx.to(slopes[0].scalar_type()), Tensor(), Tensor()};
  }
};

Pooled pool(const PoolInputs& inputs, const Tensor& where, Pooling how) {
  const Tensor keep = or_none(inputs.keep), scores = or_none(inputs.scores);
  switch (how) {
    case Pooling::max: return {.out = LargestFunction::apply(inputs.x, keep, where)};
    case Pooling::mean:
      return {.out = WeighedFunction::apply(inputs.x, keep, scores, where, true)[0]};
    case Pooling::sum:
      return {.out = WeighedFunction::apply(inputs.x, keep, scores, where, false)[0]};
    case Pooling::softmax: {
      const auto pooled = WeighedFunction::apply(inputs.x, keep, scores, where, true);
      return {.out = pooled[0], .lse = pooled[1]};
    }
  }
  fail("pooling: it must be max, mean, sum or softmax, got number ",
       static_cast<int>(how));
}

}  // namespace

std::vector<Span> equal_spans(int64_t length, int64_t size, int64_t stride) {
  require(length >= 0, "equal spans: the length must be 0 or more, got ", length);
  require(size >= 1, "equal spans: the size must be 1 or more, got ", size);
  require(stride >= 1, "equal spans: the stride must be 1 or more, got ", stride);
  std::vector<Span> spans;
  for (int64_t from = 0; from < length; from += stride) {
    spans.push_back({.from = from, .to = std::min(from + size, length)});
    if (spans.back().to == length) break;
  }
  return spans;
}

Pooled pool_spans(const PoolInputs& inputs, const std::vector<Span>& spans,
                  Pooling how) {
  check(inputs, spans, how);
  if (!has_kernels_for(inputs.x)) return pool_spans_reference(inputs, spans, how);
  return pool(inputs, as_tensor(spans), how);
}

Tensor largest_places(const PoolInputs& inputs, const std::vector<Span>& spans) {
  check(inputs, spans, Pooling::max);
  require(has_kernels_for(inputs.x), "pooling: there are no kernels for ",
          inputs.x.toString(), " tensors");
  const torch::NoGradGuard without_gradients;
  return largest(inputs, {as_tensor(spans)}, /*with_place=*/true).place;
}

Pooled pool_prefixes(const PoolInputs& inputs, int64_t segment, Pooling how) {
  check(inputs, segment, how);
  if (!has_kernels_for(inputs.x)) return pool_prefixes_reference(inputs, segment, how);
  return pool(inputs, torch::full({1}, real_length(segment, inputs.x), torch::kLong),
              how);
}

}  // namespace longspan
