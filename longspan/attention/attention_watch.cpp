#include "longspan/attention/attention_watch.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

thread_local AttentionWatch* current = nullptr;

// sum_j shares[.., j] v[.., j, :], plus what is in the outputs of values that are 0,
// against the mixture of the outputs.
void check_shares(const AttentionWatch::Seen& seen, const Tensor& rows,
                  const Tensor& shares) {
  const auto mixed = [&](const Tensor& out) {
    return torch::matmul(rows.to(torch::kDouble).unsqueeze(1).unsqueeze(1),
                         out.to(torch::kDouble))
        .squeeze(2);
  };
  Pass pass = seen.pass;
  const Tensor constant = seen.mix(torch::zeros_like(seen.v), pass);
  const Tensor expected = mixed(seen.out);
  const Tensor values =
      seen.v.repeat_interleave(shares.size(1) / seen.v.size(1), 1).to(torch::kDouble);
  const Tensor found =
      torch::matmul(shares.to(torch::kDouble).unsqueeze(2), values).squeeze(2) +
      mixed(constant);
  constexpr double kFloat = 1e-3, kShort = 5e-2;
  const bool is_short =
      seen.v.scalar_type() == torch::kBFloat16 || seen.v.scalar_type() == torch::kHalf;
  const double off = (found - expected).abs().max().item<double>();
  const double scale = expected.abs().max().item<double>() + 1e-6;
  require(off <= (is_short ? kShort : kFloat) * scale, seen.part.mechanism().name,
          ": what comes out is no weighted sum of the values, so there are no weights ",
          "that could be shown");
}

}  // namespace

AttentionWatch::AttentionWatch(Tell tell)
    : tell_(std::move(tell)), before_(std::exchange(current, this)) {}

AttentionWatch::~AttentionWatch() { current = before_; }

Tensor AttentionWatch::watched(const Part& part, const Tensor& v, Pass& pass,
                               const Mix& mix) {
  struct Quiet {
    AttentionWatch* const watch = std::exchange(current, nullptr);
    ~Quiet() { current = watch; }
  } quiet;
  if (!quiet.watch) return mix(v, pass);
  const Pass before = pass;
  const Tensor out = mix(v, pass);
  quiet.watch->tell_({part, v.detach(), out.detach(), before, mix});
  return out;
}

Tensor key_shares(const AttentionWatch::Seen& seen, const Tensor& rows) {
  const Tensor &out = seen.out, &v = seen.v;
  require(rows.dim() == 2 && rows.size(0) == out.size(0) && rows.size(1) == out.size(2),
          "key_shares: rows must be [B, N] = [", out.size(0), ", ", out.size(2),
          "], got ", shape(rows));
  const int64_t heads = out.size(1), group = heads / v.size(1);
  Tensor shares = torch::empty({out.size(0), heads, v.size(2)}, v.options());
  // Heads that have values in common take turns.
  for (int64_t place = 0; place < group; ++place) {
    const torch::AutoGradMode with_gradients(true);
    const Tensor values = v.clone().requires_grad_();
    Pass pass = seen.pass;
    const Tensor again = seen.mix(values, pass);
    Tensor direction = torch::zeros_like(again);
    direction.slice(1, place, heads, group)
        .select(3, 0)
        .copy_(rows.unsqueeze(1).expand({-1, v.size(1), -1}));
    const auto gradient = torch::autograd::grad({again}, {values}, {direction});
    shares.slice(1, place, heads, group).copy_(gradient[0].select(3, 0));
  }
  const torch::NoGradGuard without_gradients;
  check_shares(seen, rows, shares);
  return shares;
}

}  // namespace longspan
