#include "longspan/kernels/cuda/adamw.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 4;  // numbers that a thread loads together
constexpr int kWarp = 32;

// What a launch is given: as many tensors as fit into its 4 KiB of arguments.
template <class Tensor, int kMost>
struct Table {
  static constexpr int kRoom = kMost;
  Tensor tensors[kMost];
  int32_t first_block[kMost];  // the tensor's first block of threads
  int32_t count;
};

using CollectTable = Table<CollectedGradient, 100>;
using SquareTable = Table<SquaredGradient, 160>;
using UpdateTable = Table<UpdatedWeight, 60>;

static_assert(sizeof(CollectTable) <= 4000 && sizeof(SquareTable) <= 4000 &&
              sizeof(UpdateTable) + sizeof(AdamWNumbers) <= 4000);

// launch(table, blocks) until all tensors have been in a table.
template <class AnyTable, class Tensor, class Launch>
int each_table(const Tensor* tensors, int count, const Launch& launch) {
  for (int next = 0; next < count;) {
    AnyTable table = {};
    int64_t blocks = 0;
    for (; next < count && table.count < AnyTable::kRoom; ++next) {
      const int64_t more = optimizer_chunks(tensors[next].count);
      if (more == 0) continue;
      if (blocks + more > INT32_MAX) {
        if (table.count == 0) return cudaErrorInvalidValue;
        break;
      }
      table.tensors[table.count] = tensors[next];
      table.first_block[table.count] = static_cast<int32_t>(blocks);
      ++table.count;
      blocks += more;
    }
    if (blocks == 0) continue;
    launch(table, static_cast<unsigned>(blocks));
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

// Where this block of threads works.
struct Chunk {
  int tensor;
  int64_t begin, end;  // numbers
};

template <class AnyTable>
__device__ Chunk my_chunk(const AnyTable& table) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  int low = 0, high = table.count - 1;  // the last whose first block is not after mine
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_block[middle] <= block)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t begin = (block - table.first_block[low]) * kOptimizerChunk;
  const int64_t count = table.tensors[low].count;
  return {low, begin,
          begin + kOptimizerChunk < count ? begin + kOptimizerChunk : count};
}

__device__ bool is_aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// work(first, count, is_whole) for groups of kAtOnce numbers of the chunk; is_whole:
// there are kAtOnce, and `aligned`.
template <class Work>
__device__ void each_group(const Chunk& chunk, bool aligned, const Work& work) {
  for (int64_t first = chunk.begin + threadIdx.x * kAtOnce; first < chunk.end;
       first += kThreads * kAtOnce) {
    const auto left = chunk.end - first;
    const int count = left < kAtOnce ? static_cast<int>(left) : kAtOnce;
    work(first, count, aligned && count == kAtOnce);
  }
}

struct alignas(4 * sizeof(float)) FourFloats {
  float at[kAtOnce];
};

struct alignas(4 * sizeof(uint16_t)) FourShorts {
  uint16_t at[kAtOnce];
};

template <class Four, class Number>
__device__ Four load(const Number* from, int count, bool is_whole) {
  if (is_whole) return *reinterpret_cast<const Four*>(from);
  Four values = {};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    if (i < count) values.at[i] = from[i];
  return values;
}

template <class Four, class Number>
__device__ void store(Number* to, const Four& values, int count, bool is_whole) {
  if (is_whole) {
    *reinterpret_cast<Four*>(to) = values;
    return;
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    if (i < count) to[i] = values.at[i];
}

__global__ void __launch_bounds__(kThreads)
    collect_kernel(const __grid_constant__ CollectTable table) {
  const Chunk chunk = my_chunk(table);
  const auto& [sum, gradient, all, is_first] = table.tensors[chunk.tensor];
  const bool aligned =
      is_aligned(sum, sizeof(FourFloats)) && is_aligned(gradient, sizeof(FourShorts));
  each_group(chunk, aligned, [&](int64_t first, int count, bool is_whole) {
    const auto more = load<FourShorts>(gradient + first, count, is_whole);
    FourFloats values = {};
    if (!is_first) values = load<FourFloats>(sum + first, count, is_whole);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      values.at[i] += __uint_as_float(static_cast<unsigned>(more.at[i]) << 16);
    store(sum + first, values, count, is_whole);
  });
}

// The sum over the block, in a fixed order; for thread 0.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads / kWarp];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_down_sync(0xffffffffu, value, distance);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0)
    for (const double sum : sums) total += sum;
  return total;
}

__global__ void __launch_bounds__(kThreads)
    square_kernel(const __grid_constant__ SquareTable table, double* partial) {
  const Chunk chunk = my_chunk(table);
  const float* const gradient = table.tensors[chunk.tensor].gradient;
  double sum = 0;
  each_group(chunk, is_aligned(gradient, sizeof(FourFloats)),
             [&](int64_t first, int count, bool is_whole) {
               const auto values = load<FourFloats>(gradient + first, count, is_whole);
#pragma unroll
               for (int i = 0; i < kAtOnce; ++i) {
                 const auto value = static_cast<double>(values.at[i]);
                 sum += value * value;
               }
             });
  const double total = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(const double* partial, int64_t count, double* result) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  const double total = block_sum(sum);
  if (threadIdx.x == 0) *result = total;
}

__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ UpdateTable table,
                  const __grid_constant__ AdamWNumbers numbers) {
  const Chunk chunk = my_chunk(table);
  const UpdatedWeight& tensor = table.tensors[chunk.tensor];
  bool aligned = is_aligned(tensor.rounded, sizeof(FourShorts));
  for (const float* pointer : {static_cast<const float*>(tensor.weight),
                               tensor.gradient, static_cast<const float*>(tensor.first),
                               static_cast<const float*>(tensor.second)})
    aligned = aligned && is_aligned(pointer, sizeof(FourFloats));
  each_group(chunk, aligned, [&](int64_t begin, int count, bool is_whole) {
    auto weight = load<FourFloats>(tensor.weight + begin, count, is_whole);
    const auto gradient = load<FourFloats>(tensor.gradient + begin, count, is_whole);
    auto first = load<FourFloats>(tensor.first + begin, count, is_whole);
    auto second = load<FourFloats>(tensor.second + begin, count, is_whole);
    FourShorts rounded;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Every operation rounded by itself, as on the CPU.
      const float slope = __fmul_rn(gradient.at[i], numbers.scale);
      const float m = __fadd_rn(__fmul_rn(numbers.beta1, first.at[i]),
                                __fmul_rn(numbers.rest1, slope));
      const float v = __fadd_rn(__fmul_rn(numbers.beta2, second.at[i]),
                                __fmul_rn(__fmul_rn(numbers.rest2, slope), slope));
      const float root = __fsqrt_rn(__fmul_rn(v, numbers.second_scale));
      const float change =
          __fdiv_rn(__fmul_rn(tensor.step, m), __fadd_rn(root, numbers.epsilon));
      const float p = weight.at[i];
      first.at[i] = m;
      second.at[i] = v;
      weight.at[i] = __fsub_rn(__fsub_rn(p, change), __fmul_rn(tensor.decay, p));
      rounded.at[i] = __bfloat16_as_ushort(__float2bfloat16_rn(weight.at[i]));
    }
    store(tensor.weight + begin, weight, count, is_whole);
    store(tensor.first + begin, first, count, is_whole);
    store(tensor.second + begin, second, count, is_whole);
    if (tensor.rounded) store(tensor.rounded + begin, rounded, count, is_whole);
  });
}

}  // namespace

int collect_gradients(const CollectedGradient* tensors, int count, Stream stream) {
  return each_table<CollectTable>(
      tensors, count, [&](const CollectTable& table, unsigned blocks) {
        collect_kernel<<<blocks, kThreads, 0, stream>>>(table);
      });
}

int sum_of_squares(const SquaredGradient* tensors, int count, double* partial,
                   double* result, Stream stream) {
  int64_t done = 0;
  const int error = each_table<SquareTable>(
      tensors, count, [&](const SquareTable& table, unsigned blocks) {
        square_kernel<<<blocks, kThreads, 0, stream>>>(table, partial + done);
        done += blocks;
      });
  if (error != cudaSuccess) return error;
  total_kernel<<<1, kThreads, 0, stream>>>(partial, done, result);
  return cudaGetLastError();
}

int update_weights(const UpdatedWeight* tensors, int count, const AdamWNumbers& numbers,
                   Stream stream) {
  return each_table<UpdateTable>(
      tensors, count, [&](const UpdateTable& table, unsigned blocks) {
        update_kernel<<<blocks, kThreads, 0, stream>>>(table, numbers);
      });
}

}  // namespace longspan::cuda
