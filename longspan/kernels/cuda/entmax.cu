// A block of threads has a row. Of the search for the threshold see ../entmax.cpp: the
// reach is how far below the largest score a key may be.

#include "longspan/kernels/cuda/entmax.h"

#include <cuda_runtime.h>

#include <climits>
#include <cmath>

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostShared = 96 * 1024;  // bytes of a row that is kept close

__device__ float largest_of(float a, float b) { return fmaxf(a, b); }
__device__ double largest_of(double a, double b) { return fmax(a, b); }

template <class Number>
__device__ Number raised(Number base, Number power) {
  if constexpr (sizeof(Number) == 8)
    return exp(log(base) * power);
  else
    return expf(logf(base) * power);
}

// The sums over the block of kCount numbers of each thread, the same in all of them.
template <class Number, int kCount>
__device__ void sum_in_block(Number (&x)[kCount]) {
  __shared__ Number parts[kWarps][kCount];
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x[i] += __shfl_xor_sync(~0u, x[i], step);
    if (threadIdx.x % 32 == 0) parts[warp][i] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = parts[0][i];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) x[i] += parts[other][i];
  }
  __syncthreads();  // they may be written again
}

template <class Number>
__device__ Number largest_in_block(Number x) {
  __shared__ Number parts[kWarps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x = largest_of(x, __shfl_xor_sync(~0u, x, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
#pragma unroll
  for (int other = 1; other < kWarps; ++other) x = largest_of(x, parts[other]);
  __syncthreads();
  return x;
}

template <class Number, class Task>
__device__ Number alpha_of(const Task& task, int64_t row) {
  return static_cast<const Number*>(task.alpha)[row / task.rows_of_head % task.heads];
}

// How far the scores of a row are below the largest, times alpha - 1: infinitely where
// there is no key. Read from memory, or from where the block keeps them.
template <class Number, bool kKept>
struct Gaps {
  const Number* scores;
  Number most, e;
  Number* kept;

  __device__ Number of(int64_t column) const {
    return kKept ? kept[column] : e * (most - scores[column]);
  }
};

template <class Number, bool kKept>
__global__ void __launch_bounds__(kThreads)
    find_weights(const __grid_constant__ EntmaxRows task) {
  constexpr int kHalvings = 6, kSteps = 9;
  extern __shared__ __align__(16) unsigned char raw[];
  const int64_t row = blockIdx.x, columns = task.columns;
  const Number* const scores = static_cast<const Number*>(task.scores) + row * columns;
  Number* const weights = static_cast<Number*>(task.weights) + row * columns;

  Number most = -INFINITY, strange[1] = {0};
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const Number score = scores[i];
    most = largest_of(most, score);
    if (!(score < INFINITY)) strange[0] = 1;
  }
  most = largest_in_block(most);
  sum_in_block(strange);
  if (strange[0] != 0 || most == -INFINITY) {  // not a number, or nothing is seen
    const Number all = strange[0] != 0 ? static_cast<Number>(NAN) : Number{0};
    for (int64_t i = threadIdx.x; i < columns; i += kThreads) weights[i] = all;
    return;
  }

  const Number e = alpha_of<Number>(task, row) - 1, power = 1 / e;
  const Gaps<Number, kKept> gaps{scores, most, e, reinterpret_cast<Number*>(raw)};
  if constexpr (kKept) {
    for (int64_t i = threadIdx.x; i < columns; i += kThreads)
      gaps.kept[i] = e * (most - scores[i]);  // read by the same thread only
  }
  // Of the weights, and of how fast they change with the reach, but for a factor.
  const auto sums_at = [&](Number reach, Number(&sums)[2]) {
    sums[0] = sums[1] = 0;
    for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
      const Number gap = gaps.of(i);
      if (gap >= reach) continue;
      const Number base = reach - gap, weight = raised(base, power);
      sums[0] += weight;
      sums[1] += weight / base;
    }
    sum_in_block(sums);
  };

  Number reach = 1, sums[2];
  for (int i = 1; i <= kHalvings; ++i) {
    const Number less = reach - ldexp(Number{1}, -i);
    sums_at(less, sums);
    if (sums[0] >= 1) reach = less;
  }
  const auto step_at = [&]() {
    sums_at(reach, sums);
    return (1 - raised(sums[0], -e)) * sums[0] / sums[1];
  };
  for (int i = 0; i < kSteps; ++i) {
    const Number step = step_at();
    if (!(step > 0)) break;
    reach -= step;
  }
  // Once more to either side, and what is left is divided out.
  sums_at(reach, sums);
  if (sums[1] > 0) {
    const Number last = reach - (sums[0] - 1) / (power * sums[1]);
    sums_at(last, sums);
    reach = last;
  }
  const Number divisor = sums[0] > 0 ? sums[0] : Number{1};
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const Number gap = gaps.of(i);
    weights[i] = gap >= reach ? Number{0} : raised(reach - gap, power) / divisor;
  }
}

// With p the weights, g = p^(2 - alpha) where p > 0, and m the mean of the slopes by g:
// the slope of a score is g (slope - m); that of alpha, with e = alpha - 1, sums
// slope (p - g / sum g) / e^2 - slope (p log p - g / sum g * sum p log p) / e.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    find_score_slopes(const __grid_constant__ EntmaxRowsGradient task) {
  const int64_t row = blockIdx.x, columns = task.columns;
  const Number* const weights =
      static_cast<const Number*>(task.weights) + row * columns;
  const Number* const slopes = static_cast<const Number*>(task.slopes) + row * columns;
  Number* const to = static_cast<Number*>(task.score_slopes) + row * columns;
  const double e = static_cast<double>(alpha_of<Number>(task, row)) - 1;
  // Differences of the sums are small.
  double sums[5] = {};  // of g, g slope, p slope, p log p, p log p slope
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const double p = weights[i];
    if (p == 0) continue;
    const double slope = slopes[i], log_p = log(p), g = exp((1 - e) * log_p);
    sums[0] += g;
    sums[1] += g * slope;
    sums[2] += p * slope;
    sums[3] += p * log_p;
    sums[4] += p * log_p * slope;
  }
  sum_in_block(sums);
  const double mean = sums[0] == 0 ? 0 : sums[1] / sums[0];
  if (task.alpha_slopes != nullptr && threadIdx.x == 0)
    task.alpha_slopes[row] =
        (sums[2] - mean) / (e * e) - (sums[4] - mean * sums[3]) / e;
  const auto m = static_cast<Number>(mean), power = static_cast<Number>(1 - e);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const Number p = weights[i];
    to[i] = p == 0 ? Number{0} : raised(p, power) * (slopes[i] - m);
  }
}

bool fits(int64_t rows) { return rows > 0 && rows <= INT_MAX; }

template <class Number>
int launch(const EntmaxRows& task, Stream stream) {
  const auto rows = static_cast<unsigned>(task.rows);
  const int64_t bytes = task.columns * static_cast<int64_t>(sizeof(Number));
  if (bytes > kMostShared) {
    find_weights<Number, false><<<rows, kThreads, 0, stream>>>(task);
    return cudaGetLastError();
  }
  // Of the kernel, not of this call: other threads may be calling too.
  if (const cudaError_t error = cudaFuncSetAttribute(
          find_weights<Number, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
          kMostShared);
      error != cudaSuccess)
    return error;
  find_weights<Number, true><<<rows, kThreads, bytes, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace

int entmax_rows(const EntmaxRows& task, Stream stream) {
  if (!fits(task.rows)) return cudaErrorInvalidValue;
  switch (task.type) {
    case Type::kFloat: return launch<float>(task, stream);
    case Type::kDouble: return launch<double>(task, stream);
    default: return cudaErrorInvalidValue;
  }
}

int entmax_rows_gradient(const EntmaxRowsGradient& task, Stream stream) {
  if (!fits(task.rows)) return cudaErrorInvalidValue;
  const auto rows = static_cast<unsigned>(task.rows);
  switch (task.type) {
    case Type::kFloat:
      find_score_slopes<float><<<rows, kThreads, 0, stream>>>(task);
      break;
    case Type::kDouble:
      find_score_slopes<double><<<rows, kThreads, 0, stream>>>(task);
      break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace longspan::cuda
