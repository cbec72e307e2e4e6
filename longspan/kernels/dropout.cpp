#include "longspan/kernels/dropout.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/random.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/random_numbers_cuda.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Apart, and with nothing that could overlap, so that it becomes vectors: a branch on
// random words is guessed wrongly.
template <class Number, class Inner>
void keep_some(const Number* __restrict x, const uint32_t* __restrict words,
               Number* __restrict y, int64_t count, uint32_t least, Inner scale) {
  for (int64_t e = 0; e < count; ++e) {
    const auto value = static_cast<Inner>(x[e]);
    const Inner kept = words[e] >= least ? value : 0;
    y[e] = static_cast<Number>(kept * scale);
  }
}

template <class Number>
void dropout_cpu(const Number* x, Number* y, int64_t count, double probability,
                 Key key) {
  constexpr int64_t kWorthAThread = 1 << 13;  // places of four elements
  using Inner = std::conditional_t<std::is_same_v<Number, double>, double, float>;
  const auto scale = static_cast<Inner>(1 / (1 - probability));
  const uint32_t least = word_limit(probability);
  at::parallel_for(0, (count + 3) / 4, kWorthAThread, [&](int64_t begin, int64_t end) {
    constexpr int64_t kPlaces = 64;  // at once
    uint32_t words[4 * kPlaces];
    for (int64_t place = begin; place < end; place += kPlaces) {
      const int64_t places = std::min(kPlaces, end - place), first = 4 * place;
      fill_words(key, static_cast<uint64_t>(place), places, words);
      keep_some(x + first, words, y + first, std::min(4 * places, count - first), least,
                scale);
    }
  });
}

Tensor run(const Tensor& x, double probability, Key key) {
  if constexpr (kHasCuda)
    if (x.is_cuda()) return dropout_cuda(x, probability, key);
  if (!x.is_cpu()) {
    const Tensor keep = random_words(key, x.sizes(), x.device()) >=
                        static_cast<int64_t>(word_limit(probability));
    return (x * (1 / (1 - probability))).masked_fill(keep.logical_not(), 0);
  }
  const Tensor from = x.contiguous();
  Tensor to = torch::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      torch::kHalf, torch::kBFloat16, x.scalar_type(), "dropout", [&] {
        dropout_cpu(from.data_ptr<scalar_t>(), to.data_ptr<scalar_t>(), from.numel(),
                    probability, key);
      });
  return to;
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, double probability,
                        int64_t key) {
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    return run(x, probability, {static_cast<uint64_t>(key)});
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Key key{static_cast<uint64_t>(context->saved_data["key"].toInt())};
    return {dropout(grads[0], context->saved_data["probability"].toDouble(), key),
            Tensor(), Tensor()};
  }
};

}  // namespace

Tensor dropout(const Tensor& x, double probability, Key key) {
  require(probability >= 0 && probability < 1,
          "dropout: the probability must be in [0, 1), got ", probability);
  require(x.is_floating_point(), "dropout: x must be of a floating type, got ",
          x.scalar_type());
  if (probability == 0) return x;
  return DropoutFunction::apply(x, probability, static_cast<int64_t>(key.bits));
}

}  // namespace longspan
