#include "longspan/kernels/lse_merge_cuda.h"

#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/lse_merge.h"
#include "longspan/kernels/cuda/tensors.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kWho[] = "merge";

// Out and lse as the kernels take them.
Attended inner_attended(const Attended& given) {
  return {.out = unit_stride(given.out, given.out.scalar_type()),
          .lse = given.lse.to(inner_dtype(given.out))};
}

template <class Task>
Task new_task(const std::vector<Attended>& parts) {
  const Tensor& like = parts.front().out;
  Task task{.type = cuda::cuda_type(like),
            .examples = like.size(0),
            .heads = like.size(1),
            .rows = like.size(2),
            .width = like.size(3)};
  for (const auto& [out, lse] : parts)
    task.parts[task.part_count++] = {
        .out = cuda::rows_of<const void>(out, like.size(1)),
        .lse = cuda::row_numbers<const void>(lse)};
  return task;
}

std::vector<Attended> inner_parts(const std::vector<Attended>& parts) {
  std::vector<Attended> inside;
  for (const Attended& part : parts) inside.push_back(inner_attended(part));
  return inside;
}

}  // namespace

Attended merge_cuda(const std::vector<Attended>& parts) {
  const auto inside = inner_parts(parts);
  const auto& [like, lse] = inside.front();
  const Attended merged{.out = torch::empty(like.sizes(), like.options()),
                        .lse = torch::empty(lse.sizes(), lse.options())};
  auto task = new_task<cuda::Merge>(inside);
  task.out = merged.out.data_ptr();
  task.lse = merged.lse.data_ptr();
  cuda::launch(like.device(), kWho,
               [&](cuda::Stream stream) { return cuda::merge(task, stream); });
  return merged;
}

std::vector<Attended> merge_gradient_cuda(const std::vector<Attended>& parts,
                                          const Attended& slopes,
                                          const std::vector<MergeWanted>& wanted) {
  const auto inside = inner_parts(parts);
  const auto& [like, lse] = inside.front();
  const auto [out_slope, lse_slope] = inner_attended(slopes);
  std::vector<Attended> results(parts.size());
  auto task = new_task<cuda::MergeGradient>(inside);
  task.out_slope = cuda::rows_of<const void>(out_slope, like.size(1));
  task.lse_slope = cuda::row_numbers<const void>(lse_slope);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (wanted[i].out) results[i].out = torch::empty(like.sizes(), like.options());
    if (wanted[i].lse) results[i].lse = torch::empty(lse.sizes(), lse.options());
    task.slopes[i] = {.out = cuda::data_of(results[i].out),
                      .lse = cuda::data_of(results[i].lse)};
  }
  cuda::launch(like.device(), kWho,
               [&](cuda::Stream stream) { return cuda::merge_gradient(task, stream); });
  return results;
}

}  // namespace longspan
