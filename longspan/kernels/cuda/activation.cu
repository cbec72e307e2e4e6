#include "longspan/kernels/cuda/activation.h"

#include <algorithm>
#include <type_traits>

#include "longspan/kernels/cuda/column_sums.cuh"
#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;

// The probabilities of a normal number.
struct Normal {
  float below, density;

  __device__ explicit Normal(float z) {
    const float bell = expf(-0.5f * z * z);
    density = bell * 0.398942280f;
    // The probability of being beyond |z|, over bell, is 1 / (|z| + 3) times what is
    // nearly a polynomial of v = (|z| - 3) / (|z| + 3); this one is off by 5e-8 of the
    // result at most.
    const float t = __fdividef(1.0f, fabsf(z) + 3.0f);
    const float v = 1.0f - 6.0f * t;
    float p = -0.000266764624f;
    p = p * v - 0.000903250679f;
    p = p * v + 0.00107603546f;
    p = p * v + 0.00692392095f;
    p = p * v - 0.010479935f;
    p = p * v - 0.0472561007f;
    p = p * v + 0.230019349f;
    p = p * v - 0.509332285f;
    p = p * v + 0.729083669f;
    const float beyond = bell * t * p;
    below = z < 0 ? beyond : 1.0f - beyond;
  }
};

struct Gelu {
  __device__ static float value(float z) { return z * Normal(z).below; }
  __device__ static float slope(float z) {
    const Normal normal(z);
    return normal.below + z * normal.density;
  }

  __device__ static double value(double z) {
    return z * erfc(-z * 0.7071067811865475244) / 2;
  }
  __device__ static double slope(double z) {
    const double below = erfc(-z * 0.7071067811865475244) / 2;
    return below + z * exp(-z * z / 2) * 0.3989422804014326779;
  }
};

// 0.5 (1 + tanh(w / 2)) = 1 / (1 + e^-w) with w = z (kLinear + kCubic z^2), taken at
// |w|, where nothing overflows or cancels.
template <class Number>
struct Logistic {
  Number result, slope;  // by z

  __device__ explicit Logistic(Number z) {
    constexpr auto kLinear = static_cast<Number>(1.5957691216057307118);
    constexpr auto kCubic = static_cast<Number>(1.5957691216057307118 * 0.044715);
    constexpr Number kFar = 10000;  // for squares; the result has long been 0 or 1
    const Number square = z * z > kFar ? kFar : z * z;
    const Number e = exp(-fabs(z) * (kLinear + kCubic * square));
    const Number above = 1 / (1 + e);
    result = z < 0 ? e * above : above;
    slope = e * above * above * (kLinear + 3 * kCubic * square);
  }
};

struct GeluTanh {
  template <class Number>
  __device__ static Number value(Number z) {
    return z * Logistic<Number>(z).result;
  }
  template <class Number>
  __device__ static Number slope(Number z) {
    const Logistic<Number> logistic(z);
    return logistic.result + z * logistic.slope;
  }
};

// NaN stays NaN.
struct Relu {
  template <class Number>
  __device__ static Number value(Number z) {
    return z < 0 ? 0 : z;
  }
};

template <class Curve, class Number>
__device__ Number gradient(Number z, Number slope) {
  if constexpr (std::is_same_v<Curve, Relu>)
    return z <= 0 ? 0 : slope;
  else
    return slope * Curve::slope(z);
}

template <class Number>
__device__ void add(Values<Number>& to, const Values<Number>& more) {
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i) to.at[i] += more.at[i];
}

template <class Curve, class Number>
__device__ Values<Number> gradient(const Values<Number>& z,
                                   const Values<Number>& slopes) {
  Values<Number> result;
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i)
    result.at[i] = gradient<Curve>(z.at[i], slopes.at[i]);
  return result;
}

// Where a thread of a kernel that goes over all numbers works.
template <class Number>
struct Place {
  int64_t first, left, column;

  // Packs do not reach into the next row.
  __device__ explicit Place(const Divisor& packs_of_row, int64_t width) {
    constexpr int kCount = Values<Number>::kCount;
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t row = packs_of_row.quotient(thread);
    column = packs_of_row.remainder(thread) * kCount;
    first = row * width + column;
    left = width - column;
  }
};

template <class Curve, class Number>
__global__ void __launch_bounds__(kThreads)
    activate_all(const Number* __restrict__ x, const Number* __restrict__ bias,
                 Number* __restrict__ y, int64_t count, int64_t width,
                 Divisor packs_of_row, bool aligned) {
  const Place<Number> at(packs_of_row, width);
  if (at.first >= count) return;
  Values<Number> z = load(x + at.first, at.left, aligned);
  if (bias) add<Number>(z, load(bias + at.column, at.left, aligned));
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i) z.at[i] = Curve::value(z.at[i]);
  store(z, y + at.first, at.left, aligned);
}

template <class Curve, class Number>
__global__ void __launch_bounds__(kThreads)
    gradient_all(const Number* __restrict__ slopes, const Number* __restrict__ x,
                 const Number* __restrict__ bias, Number* __restrict__ x_slope,
                 int64_t count, int64_t width, Divisor packs_of_row, bool aligned) {
  const Place<Number> at(packs_of_row, width);
  if (at.first >= count) return;
  Values<Number> z = load(x + at.first, at.left, aligned);
  const Values<Number> slope = load(slopes + at.first, at.left, aligned);
  if (bias) add<Number>(z, load(bias + at.column, at.left, aligned));
  store(gradient<Curve>(z, slope), x_slope + at.first, at.left, aligned);
}

// How the gradients that are summed over rows are cut: blocks have `lanes` packs of
// columns and `chunk` rows.
struct ColumnCut {
  int lanes;
  int64_t chunk, chunks;

  ColumnCut(int64_t rows, int64_t packs) : lanes(power_for(packs, kWarp)) {
    constexpr int64_t kManyBlocks = 1024, kMostRows = 32;  // rows of a thread
    const int64_t rows_at_once = kThreads / lanes;
    const int64_t steps = parts_of(rows, rows_at_once);
    const int64_t blocks_across = parts_of(packs, lanes);
    const int64_t wanted = parts_of(steps * blocks_across, kManyBlocks);
    chunk = rows_at_once * std::max(std::clamp<int64_t>(wanted, 4, kMostRows),
                                    parts_of(steps, kMostChunks));
    chunks = parts_of(rows, chunk);
  }
};

// Block: (lanes, rows at once).
template <class Curve, class Number>
__global__ void __launch_bounds__(kThreads)
    gradient_with_bias(const Number* __restrict__ slopes, const Number* __restrict__ x,
                       const Number* __restrict__ bias, Number* __restrict__ x_slope,
                       Inner<Number>* __restrict__ chunks, int64_t rows, int64_t width,
                       int64_t chunk, bool aligned) {
  constexpr int kCount = Values<Number>::kCount;
  const int64_t lane = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t column = lane * kCount, left = width - column;
  Values<Number> sums = {};
  if (left > 0) {
    const Values<Number> offset = load(bias + column, left, aligned);
    const int64_t begin = blockIdx.y * chunk;
    const int64_t end = begin + chunk < rows ? begin + chunk : rows;
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
      const int64_t place = row * width + column;
      Values<Number> z = load(x + place, left, aligned);
      const Values<Number> slope = load(slopes + place, left, aligned);
      add(z, offset);
      const Values<Number> result = gradient<Curve>(z, slope);
      if (x_slope) store(result, x_slope + place, left, aligned);
      add(sums, result);
    }
  }
  __shared__ Inner<Number> shared[kCount][kThreads];
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y >= half && threadIdx.y < 2 * half)
#pragma unroll
      for (int i = 0; i < kCount; ++i) shared[i][thread] = sums.at[i];
    __syncthreads();
    if (threadIdx.y < half)
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        sums.at[i] += shared[i][thread + half * blockDim.x];
  }
  if (threadIdx.y > 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i < left) chunks[blockIdx.y * width + column + i] = sums.at[i];
}

// work(curve, number).
template <class Work>
int with_curve(Curve curve, Type type, const Work& work) {
  return with_number(type, [&](auto number) -> int {
    switch (curve) {
      case Curve::kGelu: return work(Gelu(), number);
      case Curve::kGeluTanh: return work(GeluTanh(), number);
      case Curve::kRelu: return work(Relu(), number);
    }
    return cudaErrorInvalidValue;
  });
}

// Without a bias all rows are as good as one.
template <class Task>
int64_t width_of(const Task& task) {
  return task.bias ? task.width : task.rows * task.width;
}

template <class Number>
int64_t packs_of(int64_t width) {
  return parts_of(width, kPackOf<Number>);
}

template <class Number>
unsigned blocks_of(int64_t count, int64_t width) {
  return static_cast<unsigned>(
      parts_of(count / width * packs_of<Number>(width), kThreads));
}

}  // namespace

int64_t activation_chunks(Type type, int64_t rows, int64_t width) {
  int64_t chunks = 0;
  with_number(type, [&](auto number) -> int {
    chunks = ColumnCut(rows, packs_of<decltype(number)>(width)).chunks;
    return 0;
  });
  return chunks;
}

int activate(const Activate& task, Stream stream) {
  return with_curve(task.curve, task.type, [&](auto curve, auto number) -> int {
    using Number = decltype(number);
    const int64_t count = task.rows * task.width, width = width_of(task);
    const int64_t packs = packs_of<Number>(width);
    activate_all<decltype(curve), Number>
        <<<blocks_of<Number>(count, width), kThreads, 0, stream>>>(
            static_cast<const Number*>(task.x), static_cast<const Number*>(task.bias),
            static_cast<Number*>(task.y), count, width,
            Divisor(packs, count / width * packs + kThreads),
            are_aligned<Number>(count / width, width, {task.x, task.bias, task.y}));
    return cudaGetLastError();
  });
}

int activate_gradient(const ActivateGradient& task, Stream stream) {
  return with_curve(task.curve, task.type, [&](auto curve, auto number) -> int {
    using Number = decltype(number);
    const auto* const slopes = static_cast<const Number*>(task.y_slope);
    const auto* const x = static_cast<const Number*>(task.x);
    const auto* const bias = static_cast<const Number*>(task.bias);
    auto* const x_slope = static_cast<Number*>(task.x_slope);
    if (!task.bias_slope) {
      if (!x_slope) return cudaSuccess;
      const int64_t count = task.rows * task.width, width = width_of(task);
      const int64_t packs = packs_of<Number>(width);
      gradient_all<decltype(curve), Number>
          <<<blocks_of<Number>(count, width), kThreads, 0, stream>>>(
              slopes, x, bias, x_slope, count, width,
              Divisor(packs, count / width * packs + kThreads),
              are_aligned<Number>(count / width, width, {slopes, x, bias, x_slope}));
      return cudaGetLastError();
    }
    const int64_t packs = packs_of<Number>(task.width);
    const ColumnCut cut(task.rows, packs);
    auto* const chunks = static_cast<Inner<Number>*>(task.chunks);
    const dim3 blocks(static_cast<unsigned>(parts_of(packs, cut.lanes)),
                      static_cast<unsigned>(cut.chunks));
    const dim3 threads(cut.lanes, kThreads / cut.lanes);
    gradient_with_bias<decltype(curve), Number><<<blocks, threads, 0, stream>>>(
        slopes, x, bias, x_slope, chunks, task.rows, task.width, cut.chunk,
        are_aligned<Number>(task.rows, task.width, {slopes, x, bias, x_slope}));
    if (const int error = cudaGetLastError()) return error;
    return sum_chunks<Inner<Number>, Number>(
        {chunks, static_cast<Number*>(task.bias_slope)}, {}, cut.chunks, task.width,
        stream);
  });
}

}  // namespace longspan::cuda
