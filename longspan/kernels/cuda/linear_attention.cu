#include "longspan/kernels/cuda/linear_attention.h"

#include <cuda_runtime.h>

#include "longspan/kernels/cuda/numbers.cuh"

namespace longspan::cuda {
namespace {

constexpr int kChunk = kLinearChunk;
constexpr int kPairs = kChunk * kChunk;
constexpr int kThreads = 256;

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float nearest_whole(float x) { return rintf(x); }
__device__ __forceinline__ double nearest_whole(double x) { return rint(x); }

unsigned blocks_of(int64_t count, int64_t block) {
  return static_cast<unsigned>((count + block - 1) / block);
}

// Calls launch(Number{}) for the number of `type`.
template <class Launch>
int with_number(Type type, const Launch& launch) {
  if (type == Type::kDouble)
    launch(double{});
  else if (type == Type::kFloat)
    launch(float{});
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}

__global__ void add_along_rows(double* x, int64_t rows, int64_t length) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  double* const of_row = x + row * length;
  double sum = 0;
  for (int64_t i = 0; i < length; ++i) {
    sum += of_row[i];
    of_row[i] = sum;
  }
}

// One element of a state, in double: rounding at every chunk would add up.
struct Element {
  double sum = 0;
  double peak = 0;

  // Lets it decay and adds sums that are times exp(-their_peak).
  __device__ void add(double sums, double their_peak, double log_decay) {
    const double decayed = peak + log_decay;
    const double top = fmax(decayed, their_peak);
    if (top == -infinity<double>()) return;
    sum = sum * exp(decayed - top) + sums * exp(their_peak - top);
    peak = top;
  }

  template <class Number>
  __device__ Number whole_peak() const {
    return static_cast<Number>(rint(peak));
  }

  template <class Number>
  __device__ Number below_whole_peak() const {
    return peak == -infinity<double>()
               ? Number{0}
               : static_cast<Number>(sum * exp(peak - rint(peak)));
  }
};

template <class Number, bool kPeaks>
__global__ void __launch_bounds__(kThreads) scan_states(const LinearScan task) {
  constexpr int kAhead = 8;  // loads at once
  const int64_t size = task.features * task.columns;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= task.heads * size) return;
  const int64_t head = index / size, place = index % size;
  const int64_t feature = place / task.columns;
  const bool is_first_column = place % task.columns == 0;
  Number* const sums =
      static_cast<Number*>(task.sums) + head * task.chunks * size + place;
  const int64_t row = head * task.chunks * task.features + feature;
  const Number* const peaks = static_cast<const Number*>(task.peaks) + row;
  Number* const peaks_before = static_cast<Number*>(task.peaks_before) + row;
  const double* const log_decay =
      task.log_decay ? task.log_decay + head * task.chunks : nullptr;

  Element state;
  if (kPeaks) state.peak = -infinity<double>();
  if (task.first) {
    state.sum = static_cast<const Number*>(task.first)[index];
    if (kPeaks)
      state.peak =
          static_cast<const Number*>(task.first_peaks)[head * task.features + feature];
  }
  // Where `last` is not wanted, the last chunk adds nothing.
  const int64_t adding = task.chunks - (task.last ? 0 : 1);
  for (int64_t begin = 0; begin < task.chunks; begin += kAhead) {
    Number added[kAhead], their_peak[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t step = begin + i;
      const int64_t chunk = task.backwards ? task.chunks - 1 - step : step;
      added[i] = step < adding ? sums[chunk * size] : Number{0};
      their_peak[i] = 0;
      if (kPeaks && step < adding) their_peak[i] = peaks[chunk * task.features];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t step = begin + i;
      if (step >= task.chunks) break;
      const int64_t chunk = task.backwards ? task.chunks - 1 - step : step;
      const double decay = log_decay ? log_decay[chunk] : 0;
      if (kPeaks) {
        sums[chunk * size] = state.below_whole_peak<Number>();
        if (is_first_column)
          peaks_before[chunk * task.features] = state.whole_peak<Number>();
        if (step < adding) state.add(added[i], their_peak[i], decay);
      } else {
        sums[chunk * size] = static_cast<Number>(state.sum);
        if (log_decay) state.sum *= exp(decay);
        state.sum += added[i];
      }
    }
  }
  if (!task.last) return;
  Number* const last = static_cast<Number*>(task.last) + index;
  if (!kPeaks) {
    *last = static_cast<Number>(state.sum);
    return;
  }
  *last = state.below_whole_peak<Number>();
  if (is_first_column)
    static_cast<Number*>(task.last_peaks)[head * task.features + feature] =
        state.whole_peak<Number>();
}

// The log of what is left of key j at query t.
__device__ __forceinline__ double log_left(const double* until, int t, int j) {
  return until ? until[t] - until[j] : 0;
}

template <class Number>
__global__ void __launch_bounds__(kThreads) fade(const LinearPairs task) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t chunk = index / kPairs;
  const int t = static_cast<int>(index % kPairs) / kChunk;
  const int j = static_cast<int>(index % kChunk);
  Number* const pair = static_cast<Number*>(task.pairs) + index;
  if (j > t)
    *pair = 0;
  else if (task.until && j < t)
    *pair *= static_cast<Number>(exp(log_left(task.until + chunk * kChunk, t, j)));
}

// Rows of a chunk in shared memory, some features at a time.
constexpr int kTileFeatures = 32;
template <class Number>
using Tile = Number[kChunk][kTileFeatures + 1];

template <class Number>
__device__ void load_tile(Tile<Number>& tile, const void* from, int64_t chunk,
                          int64_t features, int64_t first) {
  const Number* const rows =
      static_cast<const Number*>(from) + chunk * kChunk * features;
  for (int i = threadIdx.x; i < kChunk * kTileFeatures; i += kThreads) {
    const int row = i / kTileFeatures, column = i % kTileFeatures;
    tile[row][column] = first + column < features
                            ? rows[row * features + first + column]
                            : -infinity<Number>();
  }
}

// One thread has pairs of 4 queries and 4 keys, each 16 apart.
constexpr int kEach = 4, kApart = kChunk / kEach;
static_assert(kApart * kApart == kThreads);

template <class Number>
__global__ void __launch_bounds__(kThreads) multiply_logs(const LinearLogPairs task) {
  __shared__ Tile<Number> q, k;
  __shared__ double until[kChunk];
  __shared__ Number scale[kChunk];
  const int64_t chunk = blockIdx.x, first_row = chunk * kChunk;
  const int query = threadIdx.x / kApart, key = threadIdx.x % kApart;
  const auto at = [&](const void* x, int64_t row, Number otherwise) {
    return x ? static_cast<const Number*>(x)[first_row + row] : otherwise;
  };
  if (threadIdx.x < kChunk)
    until[threadIdx.x] = task.until ? task.until[first_row + threadIdx.x] : 0;
  __syncthreads();
  Number left[kEach][kEach];
#pragma unroll
  for (int a = 0; a < kEach; ++a)
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      const int t = query + a * kApart, j = key + b * kApart;
      left[a][b] =
          j <= t ? static_cast<Number>(log_left(until, t, j)) : -infinity<Number>();
    }

  // term(a, b, log of the feature of the query, that of the key) for all of them.
  const auto each_term = [&](const auto& term) {
    for (int64_t first = 0; first < task.features; first += kTileFeatures) {
      __syncthreads();
      load_tile<Number>(q, task.q, chunk, task.features, first);
      load_tile<Number>(k, task.k, chunk, task.features, first);
      __syncthreads();
      for (int f = 0; f < kTileFeatures; ++f)
#pragma unroll
        for (int a = 0; a < kEach; ++a)
#pragma unroll
          for (int b = 0; b < kEach; ++b)
            term(a, b, q[query + a * kApart][f], k[key + b * kApart][f]);
    }
  };

  if (task.largest) {
    Number most[kEach], log_weight[kEach];
#pragma unroll
    for (int a = 0; a < kEach; ++a) {
      most[a] = -infinity<Number>();
      log_weight[a] = at(task.log_weights, key + a * kApart, 0);
    }
    each_term([&](int a, int b, Number of_query, Number of_key) {
      most[a] = larger(most[a], of_query + (of_key + log_weight[b]) + left[a][b]);
    });
#pragma unroll
    for (int a = 0; a < kEach; ++a) {
      for (int lane = 1; lane < kApart; lane *= 2)
        most[a] = larger(most[a], __shfl_xor_sync(~0u, most[a], lane));
      const int t = query + a * kApart;
      const Number top = nearest_whole(larger(most[a], at(task.largest, t, 0)));
      if (key == 0) scale[t] = top == -infinity<Number>() ? Number{0} : top;
    }
    __syncthreads();
    if (threadIdx.x < kChunk)
      static_cast<Number*>(task.scale)[first_row + threadIdx.x] = scale[threadIdx.x];
  } else {
    if (threadIdx.x < kChunk) scale[threadIdx.x] = at(task.scale, threadIdx.x, 0);
    __syncthreads();
  }

  Number sums[kEach][kEach] = {}, below[kEach];
#pragma unroll
  for (int a = 0; a < kEach; ++a) below[a] = scale[query + a * kApart];
  each_term([&](int a, int b, Number of_query, Number of_key) {
    sums[a][b] += exponential((of_query + (of_key - below[a])) + left[a][b]);
  });
  Number* const pairs = static_cast<Number*>(task.pairs) + chunk * kPairs;
#pragma unroll
  for (int b = 0; b < kEach; ++b) {
    const int j = key + b * kApart;
    const Number weight = at(task.weights, j, 1);
#pragma unroll
    for (int a = 0; a < kEach; ++a)
      pairs[(query + a * kApart) * kChunk + j] = sums[a][b] * weight;
  }
}

// A warp has a row, a lane a feature.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    add_slopes_of_logs(const LinearLogPairSlopes task, int tiles) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kTileFeatures == 32);
  __shared__ Tile<Number> q, k;
  __shared__ double until[kChunk];
  __shared__ Number scale[kChunk], weights[kChunk];
  const LinearLogPairs& given = task.given;
  const int64_t chunk = blockIdx.x / tiles, first_row = chunk * kChunk;
  const int64_t first = int64_t{blockIdx.x % tiles} * kTileFeatures;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Number* const dots = static_cast<const Number*>(task.dots) + chunk * kPairs;
  load_tile<Number>(q, given.q, chunk, given.features, first);
  load_tile<Number>(k, given.k, chunk, given.features, first);
  if (threadIdx.x < kChunk) {
    const int64_t row = first_row + threadIdx.x;
    until[threadIdx.x] = given.until ? given.until[row] : 0;
    scale[threadIdx.x] = static_cast<const Number*>(given.scale)[row];
    weights[threadIdx.x] =
        given.weights ? static_cast<const Number*>(given.weights)[row] : Number{1};
  }
  __syncthreads();
  if (first + lane >= given.features) return;
  const auto term = [&](int t, int j) {
    return exponential((q[t][lane] + (k[j][lane] - scale[t])) +
                       static_cast<Number>(until[t] - until[j]));
  };
  for (int row = warp; row < kChunk; row += kWarps) {
    const int64_t place = (first_row + row) * given.features + first + lane;
    Number of_query = 0, of_key = 0;
    for (int j = 0; j <= row; ++j)
      of_query += term(row, j) * (dots[row * kChunk + j] * weights[j]);
    for (int t = row; t < kChunk; ++t) of_key += term(t, row) * dots[t * kChunk + row];
    static_cast<Number*>(task.q_slope)[place] += of_query;
    static_cast<Number*>(task.k_slope)[place] += of_key;
  }
}

}  // namespace

int running_sums(double* x, int64_t rows, int64_t length, Stream stream) {
  if (rows == 0 || length == 0) return cudaSuccess;
  constexpr int kRows = 64;
  add_along_rows<<<blocks_of(rows, kRows), kRows, 0, stream>>>(x, rows, length);
  return cudaGetLastError();
}

int linear_scan(const LinearScan& task, Stream stream) {
  const int64_t elements = task.heads * task.features * task.columns;
  if (elements == 0) return cudaSuccess;
  return with_number(task.type, [&](auto number) {
    using Number = decltype(number);
    const auto kernel =
        task.has_peaks ? scan_states<Number, true> : scan_states<Number, false>;
    kernel<<<blocks_of(elements, kThreads), kThreads, 0, stream>>>(task);
  });
}

int fade_pairs(const LinearPairs& task, Stream stream) {
  if (task.chunks == 0) return cudaSuccess;
  return with_number(task.type, [&](auto number) {
    fade<decltype(number)>
        <<<blocks_of(task.chunks * kPairs, kThreads), kThreads, 0, stream>>>(task);
  });
}

int log_pairs(const LinearLogPairs& task, Stream stream) {
  if (task.chunks == 0) return cudaSuccess;
  return with_number(task.type, [&](auto number) {
    multiply_logs<decltype(number)>
        <<<blocks_of(task.chunks, 1), kThreads, 0, stream>>>(task);
  });
}

int log_pair_slopes(const LinearLogPairSlopes& task, Stream stream) {
  if (task.given.chunks == 0) return cudaSuccess;
  const unsigned tiles = blocks_of(task.given.features, kTileFeatures);
  return with_number(task.given.type, [&](auto number) {
    add_slopes_of_logs<decltype(number)>
        <<<blocks_of(task.given.chunks * tiles, 1), kThreads, 0, stream>>>(
            task, static_cast<int>(tiles));
  });
}

}  // namespace longspan::cuda
