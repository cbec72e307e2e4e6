#include "longspan/kernels/cuda/tensors.h"

#include <string>

#include <ATen/ops/_assert_async.h>
#include <torch/version.h>

#include "longspan/base/error.h"

namespace longspan::cuda {

using torch::Tensor;

namespace {

// Whether the type of a tensor has nothing beyond the limits.
bool holds_nothing_else(const Tensor& given, const Limits& limits) {
  using Int = std::numeric_limits<int32_t>;
  return given.scalar_type() == torch::kInt && limits.least <= Int::min() &&
         limits.most >= Int::max();
}

void check(const Tensor& given, const char* name, const Limits& limits) {
  const auto [least_allowed, most_allowed, cut_least, cut_most] = limits;
  if (given.numel() == 0 || (cut_least && cut_most) ||
      holds_nothing_else(given, limits))
    return;
  if (given.is_cpu()) {
    const auto least = given.min().item<int64_t>(), most = given.max().item<int64_t>();
    require((cut_least || least >= least_allowed) && (cut_most || most <= most_allowed),
            "block attention: ", name, " must be between ", least_allowed, " and ",
            most_allowed, ", got ", cut_least || least >= least_allowed ? most : least);
    return;
  }
  Tensor good = cut_least ? given.le(most_allowed) : given.ge(least_allowed);
  if (!cut_least && !cut_most) good = good.logical_and(given.le(most_allowed));
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  at::_assert_async(good.all(), std::string("block attention: ") + name +
                                    " must be between " +
                                    std::to_string(least_allowed) + " and " +
                                    std::to_string(most_allowed));
#else
  at::_assert_async(good.all());
#endif
}

}  // namespace

Tensor aligned(const Tensor& x) {
  const auto is_even = [&](int64_t count) {
    return count * static_cast<int64_t>(x.element_size()) % 16 == 0;
  };
  bool holds = x.size(-1) <= 1 || x.stride(-1) == 1;
  for (int64_t axis = 0; axis + 1 < x.dim(); ++axis)
    holds = holds && (x.size(axis) <= 1 || is_even(x.stride(axis)));
  holds = holds && reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
  return holds ? x : x.clone(torch::MemoryFormat::Contiguous);
}

Tensor spaced(const Tensor& x) {
  constexpr int64_t kFarthest = std::numeric_limits<int32_t>::max() / 8;
  const bool holds = x.size(-2) <= 1 || (x.stride(-2) > 0 && x.stride(-2) <= kFarthest);
  return holds ? x : x.clone(torch::MemoryFormat::Contiguous);
}

Tensor int32_on(const torch::Device& device, const Tensor& given, const char* name,
                const Limits& limits) {
  if (!given.defined()) return given;
  check(given, name, limits);
  Tensor ints = given.to(device);
  if (ints.scalar_type() != torch::kInt)
    ints = ints.clamp(limits.least, limits.most).to(torch::kInt);
  ints = ints.contiguous();
  if (ints.dim() == 1) return ints.view({1, 1, -1, 1});
  return ints.dim() == 3 ? ints.unsqueeze(3) : ints;
}

Tensor sum_of_places(const Tensor& places, const Tensor& rows, bool once,
                     int64_t count) {
  if (!rows.defined()) return places;
  const int64_t examples = places.size(0), heads = places.size(1);
  const Tensor given = rows.to(places.device(), torch::kLong);
  const Tensor each = (given.dim() == 1 ? given.view({1, 1, -1}) : given)
                          .expand({examples, heads, places.size(2)});
  if (once) {
    const Tensor target = each.masked_fill(each.lt(0), count)
                              .unsqueeze(3)
                              .expand({-1, -1, -1, places.size(3)});
    return torch::zeros({examples, heads, count + 1, places.size(3)}, places.options())
        .scatter_(2, target, places)
        .narrow(2, 0, count);
  }
  const Tensor head =
      torch::arange(examples * heads, each.options()).view({examples, heads, 1});
  // Empty places go to a row of their own, which is cut off.
  const Tensor target = head * (count + 1) + each.masked_fill(each.lt(0), count);
  Tensor sums =
      torch::zeros({examples * heads * (count + 1), places.size(3)}, places.options());
  sums.index_put_({target.reshape(-1)}, places.reshape({-1, places.size(3)}),
                  /*accumulate=*/true);
  return sums.view({examples, heads, count + 1, places.size(3)}).narrow(2, 0, count);
}

Tensor of_given(const Tensor& places, const Tensor& rows, bool once,
                const Tensor& given) {
  const int64_t examples = places.size(0), heads = places.size(1);
  const bool is_shared = given.size(0) != examples || given.size(1) != heads;
  if (!is_shared && (once || !rows.defined()))
    return sum_of_places(places, rows, once, given.size(2));
  const bool is_exact = places.scalar_type() == torch::kDouble;
  const Tensor all = sum_of_places(places.to(is_exact ? torch::kDouble : torch::kFloat),
                                   rows, once, given.size(2));
  const Tensor grouped = all.reshape(
      {examples, given.size(1), heads / given.size(1), all.size(2), all.size(3)});
  const Tensor of_heads = grouped.size(2) == 1 ? grouped.squeeze(2) : grouped.sum(2);
  return given.size(0) == examples ? of_heads : of_heads.sum(0, /*keepdim=*/true);
}

}  // namespace longspan::cuda
