// What the backward pass of attention needs of every query.

#include "longspan/kernels/cuda/attention_launch.cuh"

namespace longspan::cuda {
namespace {

constexpr int kLanes = 8;  // of a row

// Sums of float products in double: the differences to them are small.
template <class Stored>
using SumOf = std::conditional_t<kOnTensorCores<Stored>, float, double>;

template <class Stored>
__global__ void __launch_bounds__(kThreads)
    make_gradient_rows(const __grid_constant__ GradientRows task, bool all_in_chunks) {
  using Number = NumberOf<Stored>;
  using Sum = SumOf<Stored>;
  constexpr int kInChunk = 16 / sizeof(Stored);
  struct alignas(16) Chunk {
    Stored numbers[kInChunk];
  };
  const int64_t number =
      (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t heads = task.examples * task.heads;
  const bool is_there = number < heads * task.queries;
  const int64_t head_number = is_there ? number / task.queries : 0;
  const int64_t row = is_there ? number - head_number * task.queries : 0;
  const auto example = static_cast<int32_t>(head_number / task.heads);
  const auto head = static_cast<int32_t>(head_number % task.heads);
  Sum sum = 0;
  if (is_there) {
    const Stored* const out =
        head_of<const Stored>(task.out, example, head) + row * task.out.row;
    const Stored* const slope =
        head_of<const Stored>(task.out_slope, example, head) + row * task.out_slope.row;
    int64_t done = 0;
    if (all_in_chunks) {
      done = task.value_width / kInChunk * kInChunk;
      for (int64_t x = lane * kInChunk; x < done; x += kLanes * kInChunk) {
        const Chunk a = *reinterpret_cast<const Chunk*>(out + x);
        const Chunk b = *reinterpret_cast<const Chunk*>(slope + x);
#pragma unroll
        for (int i = 0; i < kInChunk; ++i)
          sum = fused(static_cast<Sum>(to_number(a.numbers[i])),
                      static_cast<Sum>(to_number(b.numbers[i])), sum);
      }
    }
    for (int64_t x = done + lane; x < task.value_width; x += kLanes)
      sum = fused(static_cast<Sum>(to_number(out[x])),
                  static_cast<Sum>(to_number(slope[x])), sum);
  }
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)
    sum += __shfl_xor_sync(~0u, sum, lanes);
  if (!is_there || lane != 0) return;
  const Number lse = head_of<const Number>(task.lse, example, head)[row * task.lse.row];
  const bool sees_nothing = lse == -infinity<Number>();
  const Number lse_slope = task.lse_slope.data
                               ? head_of<const Number>(task.lse_slope, example,
                                                       head)[row * task.lse_slope.row]
                               : Number{0};
  head_of<Number>(task.lse2, example, head)[row * task.lse2.row] =
      sees_nothing ? infinity<Number>() : lse * static_cast<Number>(kLog2E);
  head_of<Number>(task.delta, example, head)[row * task.delta.row] =
      sees_nothing ? Number{0} : static_cast<Number>(sum - static_cast<Sum>(lse_slope));
}

template <class Stored>
int launch(const GradientRows& task, Stream stream) {
  const int64_t rows = task.examples * task.heads * task.queries;
  constexpr int64_t kRows = kThreads / kLanes;
  return launch_blocks<make_gradient_rows<Stored>>(
      (rows + kRows - 1) / kRows, 1, 0, stream, task,
      in_chunks(task.out, task.type) && in_chunks(task.out_slope, task.type));
}

}  // namespace

int gradient_rows(const GradientRows& task, Stream stream) {
  switch (task.type) {
    case Type::kDouble: return launch<double>(task, stream);
    case Type::kFloat: return launch<float>(task, stream);
    case Type::kHalf: return launch<__half>(task, stream);
    case Type::kBFloat16: return launch<__nv_bfloat16>(task, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace longspan::cuda
