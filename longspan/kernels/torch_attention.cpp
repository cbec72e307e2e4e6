#include "longspan/kernels/torch_attention.h"

#include <mutex>

#include <ATen/Context.h>
#include "longspan/base/error.h"
#include "longspan/kernels/heads.h"

#ifdef LONGSPAN_TORCH_HAS_ATTENTION
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#endif

namespace longspan {

using torch::Tensor;

#ifdef LONGSPAN_TORCH_HAS_ATTENTION

namespace {

// Its gradients add up in a fixed order only where all of LibTorch is told to: one at a
// time, for the setting is of the process.
class Deterministic {
 public:
  Deterministic()
      : alone_(mutex()),
        before_(at::globalContext().deterministicAlgorithms()),
        only_warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(before_, only_warned_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  std::lock_guard<std::mutex> alone_;
  bool before_, only_warned_;
};

Tensor dense_rows(const Tensor& x) { return unit_stride(x, x.scalar_type()); }

bool is_causal(const AttentionCall& call) {
  return call.sources[0].layout && call.sources[0].layout->tiles(0).is_past();
}

}  // namespace

bool torch_attention_serves(const AttentionCall& call, const AttentionSizes& sizes) {
  if (!uses_torch_attention() || call.sources.size() != 1) return false;
  const auto& [queries, sources, options] = call;
  const Source& source = sources[0];
  const auto type = queries.q.scalar_type();
  const bool has_type = type == torch::kHalf || type == torch::kBFloat16;
  const bool has_sizes =
      sizes.width == sizes.value_width && sizes.width % 8 == 0 && sizes.width <= 256 &&
      sizes.examples > 0 && sizes.queries > 0 && source.k.size(2) > 0 &&
      source.k.size(0) == sizes.examples && source.k.size(1) == sizes.heads &&
      source.v.size(0) == sizes.examples;
  const bool is_plain = options.dropout.probability == 0 && !queries.rows.defined() &&
                        !queries.buckets.defined() && !source.rows.defined() &&
                        !source.buckets.defined() && !source.from.defined() &&
                        !source.to.defined() && !source.bias.defined();
  if (!has_type || !has_sizes || !is_plain) return false;
  if (!source.layout) return true;
  return source.layout->patterns() == 1 &&
         (source.layout->tiles(0).is_all() || source.layout->tiles(0).is_past());
}

Attended torch_attention(const AttentionCall& call) {
  const Source& source = call.sources[0];
  const auto results = at::_scaled_dot_product_flash_attention(
      dense_rows(call.queries.q), dense_rows(source.k), dense_rows(source.v),
      /*dropout_p=*/0, is_causal(call),
      /*return_debug_mask=*/false, call.scale());
  return {std::get<0>(results), std::get<1>(results)};
}

std::vector<Tensor> torch_attention_gradient(const AttentionCall& call,
                                             const Attended& results,
                                             const Tensor& out_slope) {
  const Deterministic in_a_fixed_order;
  const Source& source = call.sources[0];
  const Tensor unused = torch::empty({0}, results.lse.options().dtype(torch::kLong));
  const auto [q, k, v] = at::_scaled_dot_product_flash_attention_backward(
      dense_rows(out_slope), dense_rows(call.queries.q), dense_rows(source.k),
      dense_rows(source.v), results.out, results.lse, Tensor(), Tensor(),
      call.queries.q.size(2), source.k.size(2), /*dropout_p=*/0, is_causal(call),
      unused, unused, call.scale());
  return {q, k, v};
}

#else

bool torch_attention_serves(const AttentionCall&, const AttentionSizes&) {
  return false;
}

Attended torch_attention(const AttentionCall&) {
  fail("this LibTorch has no attention of its own");
}

std::vector<Tensor> torch_attention_gradient(const AttentionCall&, const Attended&,
                                             const Tensor&) {
  fail("this LibTorch has no attention of its own");
}

#endif

}  // namespace longspan
