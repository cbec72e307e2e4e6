#include "longspan/kernels/entmax_cuda.h"

#include "longspan/kernels/cuda/entmax.h"
#include "longspan/kernels/cuda/launch.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kWho[] = "entmax attention";

// Of [B, H, n, M].
template <class Task>
Task new_task(const Tensor& like, const Tensor& alpha) {
  return {.type = cuda::cuda_type(like),
          .heads = like.size(1),
          .rows_of_head = like.size(2),
          .rows = like.size(0) * like.size(1) * like.size(2),
          .columns = like.size(3),
          .alpha = alpha.data_ptr()};
}

}  // namespace

Tensor entmax_rows_cuda(const Tensor& scores, const Tensor& alpha) {
  const Tensor from = scores.contiguous(), alphas = alpha.contiguous();
  const Tensor weights = torch::empty_like(from);
  if (from.numel() == 0) return weights;
  auto task = new_task<cuda::EntmaxRows>(from, alphas);
  task.scores = from.data_ptr();
  task.weights = weights.data_ptr();
  cuda::launch(from.device(), kWho,
               [&](cuda::Stream stream) { return cuda::entmax_rows(task, stream); });
  return weights;
}

EntmaxRowSlopes entmax_rows_gradient_cuda(const Tensor& weights, const Tensor& slopes,
                                          const Tensor& alpha, bool wants_alpha) {
  const Tensor from = slopes.contiguous(), alphas = alpha.contiguous();
  EntmaxRowSlopes result{.scores = torch::empty_like(from), .alpha = {}};
  Tensor of_rows;
  if (wants_alpha)
    of_rows =
        torch::zeros(from.sizes().slice(0, 3), from.options().dtype(torch::kDouble));
  if (from.numel() > 0) {
    auto task = new_task<cuda::EntmaxRowsGradient>(from, alphas);
    task.weights = weights.data_ptr();
    task.slopes = from.data_ptr();
    task.score_slopes = result.scores.data_ptr();
    if (wants_alpha) task.alpha_slopes = of_rows.data_ptr<double>();
    cuda::launch(from.device(), kWho, [&](cuda::Stream stream) {
      return cuda::entmax_rows_gradient(task, stream);
    });
  }
  if (wants_alpha) result.alpha = of_rows.sum(2).sum(0);
  return result;
}

}  // namespace longspan
