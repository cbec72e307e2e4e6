#include "longspan/kernels/cuda/layer_norm.h"

#include <algorithm>

#include "longspan/kernels/cuda/column_sums.cuh"
#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;

// Packs that a thread holds: of x; and of x, the slopes of y and what is summed.
constexpr int kHeld = 4;
template <class Number>
constexpr int kHeldForGradient = sizeof(Number) == 2 ? 2 : 4;

// How many threads share a row, and a block.
struct Team {
  int threads, block;
  bool holds;  // the whole row at once

  Team(int64_t width, int held) : threads(kWarp) {
    while (threads < kMostThreads && threads * held < width) threads *= 2;
    block = std::max(threads, kThreads);
    holds = threads * held >= width;
  }

  int in_block() const { return block / threads; }
};

// Sums over the threads of a team, for all of them. All threads of the block must be
// here. `shared`: count times the warps of a block.
template <int count, class Number>
__device__ void sum_over_team(Number (&values)[count], int team, Number* shared) {
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = sum_of_lanes(values[i], kWarp);
  if (team == kWarp) return;
  const int warp = threadIdx.x / kWarp;
  __syncthreads();  // what was there may still be read
  if (threadIdx.x % kWarp == 0)
#pragma unroll
    for (int i = 0; i < count; ++i) shared[warp * count + i] = values[i];
  __syncthreads();
  const int warps = team / kWarp, first = warp / warps * warps;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = 0;
    for (int other = first; other < first + warps; ++other)
      values[i] += shared[other * count + i];
  }
}

// The packs of a row that a thread works on. Those of a team that holds its rows are
// read once.
template <class Number, int held, bool holds>
class RowPart {
 public:
  __device__ RowPart(const Number* row, int width, int team, bool aligned)
      : row_(row), width_(width), team_(team), aligned_(aligned) {
    if constexpr (holds) {
#pragma unroll
      for (int i = 0; i < held; ++i)
        if (column(i) < width_) packs_[i] = at(column(i));
    }
  }

  // work(number of the pack, its first column, its values).
  template <class Work>
  __device__ void each(const Work& work) const {
    if constexpr (holds) {
#pragma unroll
      for (int i = 0; i < held; ++i)
        if (column(i) < width_) work(i, column(i), widened(packs_[i]));
    } else {
      for (int i = 0; column(i) < width_; ++i) work(i, column(i), pack(i));
    }
  }

  __device__ Values<Number> pack(int i) const {
    if constexpr (holds)
      return widened(packs_[i]);
    else
      return widened(at(column(i)));
  }

 private:
  __device__ int column(int i) const {
    return (i * team_ + static_cast<int>(threadIdx.x) % team_) * Values<Number>::kCount;
  }
  __device__ Pack<Number> at(int column) const {
    return load_pack<kPackOf<Number>>(row_ + column, width_ - column, aligned_);
  }

  const Number* row_;
  int width_, team_;
  bool aligned_;
  Pack<Number> packs_[holds ? held : 1];
};

// A pack of weights, or `otherwise` where there are none.
template <class Number, class Weight>
__device__ Values<Number> parameters(const Weight* from, int column, int width,
                                     bool aligned, Inner<Number> otherwise) {
  Values<Number> values;
  if (from) {
    load<Values<Number>::kCount>(from + column, width - column, aligned, values.at);
  } else {
#pragma unroll
    for (auto& value : values.at) value = otherwise;
  }
  return values;
}

__device__ float over_root(float x) { return __frsqrt_rn(x); }
__device__ double over_root(double x) { return 1 / sqrt(x); }

template <class Number, class Weight, bool holds>
__global__ void __launch_bounds__(kMostThreads, 2)
    norm(const __grid_constant__ LayerNorm task, int team, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  __shared__ In shared[2 * kMostThreads / kWarp];
  const int width = static_cast<int>(task.width);
  const int64_t index =
      blockIdx.x * static_cast<int64_t>(blockDim.x / team) + threadIdx.x / team;
  const bool is_row = index < task.rows;
  const int64_t row = is_row ? index : task.rows - 1;
  const RowPart<Number, kHeld, holds> x(
      static_cast<const Number*>(task.x) + row * width, width, team, aligned);

  In sum[1] = {};
  x.each([&](int, int, const Values<Number>& values) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[0] += values.at[i];
  });
  sum_over_team(sum, team, shared);
  const In guess = sum[0] / static_cast<In>(width);

  // Around the rounded mean, and then corrected for the rounding.
  In offs[2] = {};  // and their squares
  x.each([&](int, int column, const Values<Number>& values) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const In off = column + i < width ? values.at[i] - guess : 0;
      offs[0] += off;
      offs[1] += off * off;
    }
  });
  sum_over_team(offs, team, shared);
  const In shift = offs[0] / static_cast<In>(width);
  const In variance = offs[1] / static_cast<In>(width) - shift * shift;
  const In rstd =
      over_root((variance > 0 ? variance : 0) + static_cast<In>(task.epsilon));
  if (!is_row) return;
  if (threadIdx.x % team == 0) {
    static_cast<In*>(task.mean)[2 * row] = guess;
    static_cast<In*>(task.mean)[2 * row + 1] = shift;
    static_cast<In*>(task.rstd)[row] = rstd;
  }
  x.each([&](int, int column, const Values<Number>& values) {
    const auto weight = parameters<Number>(static_cast<const Weight*>(task.weight),
                                           column, width, aligned, 1);
    const auto bias = parameters<Number>(static_cast<const Weight*>(task.bias), column,
                                         width, aligned, 0);
    Values<Number> y;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      y.at[i] = (values.at[i] - guess - shift) * rstd * weight.at[i] + bias.at[i];
    store(y, static_cast<Number*>(task.y) + row * width + column, width - column,
          aligned);
  });
}

// How rows are shared out: a block has `chunk` of them, every team in it `each`.
struct Chunks {
  int64_t each, chunk, chunks;

  Chunks(int64_t rows, const Team& team) {
    constexpr int64_t kManyBlocks = 528, kFewRows = 2, kMostRows = 32;
    const int64_t steps = parts_of(rows, team.in_block());
    each = std::max(std::clamp(parts_of(steps, kManyBlocks), kFewRows, kMostRows),
                    parts_of(steps, kMostChunks));
    chunk = each * team.in_block();
    chunks = parts_of(rows, chunk);
  }
};

// What a block sums over its rows, of the columns of every thread: in registers, or in
// its own row of memory where the columns are too many.
template <class Number, int held, bool holds>
class SlopeSums {
 public:
  __device__ explicit SlopeSums(Inner<Number>* chunk) : chunk_(chunk) {}

  __device__ void add(int pack, int column, int width, bool first,
                      const Values<Number>& values) {
    constexpr int kCount = Values<Number>::kCount;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (holds) {
        sums_[pack].at[i] += values.at[i];
      } else if (chunk_ && column + i < width) {
        Inner<Number>& sum = chunk_[column + i];
        sum = first ? values.at[i] : sum + values.at[i];
      }
    }
  }

  // The sums of all teams into the block's row. All threads must be here. `shared`: a
  // pack for every thread.
  __device__ void write(int width, int team, Values<Number>* shared) {
    if constexpr (holds) {
      const int teams = blockDim.x / team, lane = threadIdx.x % team;
#pragma unroll
      for (int pack = 0; pack < held; ++pack) {
        if (!chunk_) continue;
        __syncthreads();  // what was there may still be read
        shared[threadIdx.x] = sums_[pack];
        __syncthreads();
        if (threadIdx.x >= team) continue;
        Values<Number> sum = sums_[pack];
        for (int other = 1; other < teams; ++other)
#pragma unroll
          for (int i = 0; i < Values<Number>::kCount; ++i)
            sum.at[i] += shared[other * team + lane].at[i];
        const int column = (pack * team + lane) * Values<Number>::kCount;
#pragma unroll
        for (int i = 0; i < Values<Number>::kCount; ++i)
          if (column + i < width) chunk_[column + i] = sum.at[i];
      }
    }
  }

 private:
  Inner<Number>* chunk_;  // null: not wanted
  Values<Number> sums_[holds ? held : 1] = {};
};

template <class Number, class Weight, bool holds>
__global__ void __launch_bounds__(kMostThreads)
    norm_gradient(const __grid_constant__ LayerNormGradient task, int team,
                  int64_t rows_of_team, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount, kPacks = kHeldForGradient<Number>;
  using Part = RowPart<Number, kPacks, holds>;
  __shared__ In shared[2 * kMostThreads / kWarp];
  extern __shared__ __align__(16) char packs[];
  const int width = static_cast<int>(task.width);
  const int teams = blockDim.x / team;
  const int64_t first = blockIdx.x * rows_of_team * teams;
  auto* const chunks = static_cast<In*>(task.chunks);
  In* const weight_chunks = chunks + blockIdx.x * width;
  In* const bias_chunks = chunks + (gridDim.x + blockIdx.x) * width;
  SlopeSums<Number, kPacks, holds> weight_sums(task.weight_slope ? weight_chunks
                                                                 : nullptr);
  SlopeSums<Number, kPacks, holds> bias_sums(task.bias_slope ? bias_chunks : nullptr);

  for (int64_t step = 0; step < rows_of_team; ++step) {
    const int64_t index = first + step * teams + threadIdx.x / team;
    if (first + step * teams >= task.rows) break;  // for all of the block
    const bool is_row = index < task.rows;
    const int64_t row = is_row ? index : task.rows - 1;
    const In guess = static_cast<const In*>(task.mean)[2 * row];
    const In shift = static_cast<const In*>(task.mean)[2 * row + 1];
    const In rstd = static_cast<const In*>(task.rstd)[row];
    const Part x(static_cast<const Number*>(task.x) + row * width, width, team,
                 aligned);
    const Part slopes(static_cast<const Number*>(task.y_slope) + row * width, width,
                      team, aligned);

    // With z = (x - mean) * rstd and g = the slope of y * weight:
    // slope of x = rstd * (g - average of g - z * average of g * z)
    In averages[2] = {};  // of g and g * z
    x.each([&](int pack, int column, const Values<Number>& values) {
      const auto weight = parameters<Number>(static_cast<const Weight*>(task.weight),
                                             column, width, aligned, 1);
      const Values<Number> slope = slopes.pack(pack);
      Values<Number> product;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const In z = (values.at[i] - guess - shift) * rstd;
        const In g = slope.at[i] * weight.at[i];
        product.at[i] = slope.at[i] * z;
        averages[0] += g;
        averages[1] += g * z;
      }
      if (!is_row) return;
      weight_sums.add(pack, column, width, step == 0, product);
      bias_sums.add(pack, column, width, step == 0, slope);
    });
    if (!task.x_slope) continue;

    sum_over_team(averages, team, shared);
    const In g_average = averages[0] / static_cast<In>(width);
    const In gz_average = averages[1] / static_cast<In>(width);
    // A row of one has no slope; what is fused in one sum and not in the other would
    // give it some.
    const In scale = width > 1 ? rstd : 0;
    if (!is_row) continue;
    x.each([&](int pack, int column, const Values<Number>& values) {
      const auto weight = parameters<Number>(static_cast<const Weight*>(task.weight),
                                             column, width, aligned, 1);
      const Values<Number> slope = slopes.pack(pack);
      Values<Number> result;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const In z = (values.at[i] - guess - shift) * rstd;
        const In g = slope.at[i] * weight.at[i];
        result.at[i] = (g - g_average - z * gz_average) * scale;
      }
      store(result, static_cast<Number*>(task.x_slope) + row * width + column,
            width - column, aligned);
    });
  }
  auto* const all = reinterpret_cast<Values<Number>*>(packs);
  weight_sums.write(width, team, all);
  bias_sums.write(width, team, all);
}

// work(number, weight) with numbers of the types of x and of weight and bias.
template <class Work>
int with_numbers(Type type, bool wide, const Work& work) {
  return with_number(type, [&](auto number) -> int {
    using Number = decltype(number);
    if constexpr (sizeof(Number) == 2)
      if (wide) return work(number, float());
    return work(number, number);
  });
}

constexpr int64_t kMostColumns = int64_t{1} << 30;

template <class Number>
Team team_for_gradient(int64_t width) {
  return Team(width, kHeldForGradient<Number> * kPackOf<Number>);
}

}  // namespace

int64_t layer_norm_chunks(Type type, int64_t rows, int64_t width) {
  int64_t chunks = 0;
  with_number(type, [&](auto number) -> int {
    chunks = Chunks(rows, team_for_gradient<decltype(number)>(width)).chunks;
    return 0;
  });
  return chunks;
}

int layer_norm(const LayerNorm& task, Stream stream) {
  if (task.width > kMostColumns) return cudaErrorInvalidValue;
  return with_numbers(task.type, task.wide, [&](auto number, auto weight) -> int {
    using Number = decltype(number);
    using Weight = decltype(weight);
    const Team team(task.width, kHeld * kPackOf<Number>);
    const auto blocks = static_cast<unsigned>(parts_of(task.rows, team.in_block()));
    const bool aligned = are_aligned<Number>(task.rows, task.width,
                                             {task.x, task.weight, task.bias, task.y});
    const auto kernel =
        team.holds ? norm<Number, Weight, true> : norm<Number, Weight, false>;
    kernel<<<blocks, team.block, 0, stream>>>(task, team.threads, aligned);
    return cudaGetLastError();
  });
}

int layer_norm_gradient(const LayerNormGradient& task, Stream stream) {
  if (task.width > kMostColumns) return cudaErrorInvalidValue;
  return with_numbers(task.type, task.wide, [&](auto number, auto weight) -> int {
    using Number = decltype(number);
    using Weight = decltype(weight);
    const Team team = team_for_gradient<Number>(task.width);
    const Chunks cut(task.rows, team);
    const bool aligned = are_aligned<Number>(
        task.rows, task.width, {task.x, task.y_slope, task.weight, task.x_slope});
    const auto kernel = team.holds ? norm_gradient<Number, Weight, true>
                                   : norm_gradient<Number, Weight, false>;
    kernel<<<static_cast<unsigned>(cut.chunks), team.block,
             team.block * sizeof(Values<Number>), stream>>>(task, team.threads,
                                                            cut.each, aligned);
    if (const int error = cudaGetLastError()) return error;
    if (!task.weight_slope && !task.bias_slope) return cudaSuccess;
    const auto* const chunks = static_cast<const Inner<Number>*>(task.chunks);
    return sum_chunks<Inner<Number>, Weight>(
        {chunks, static_cast<Weight*>(task.weight_slope)},
        {chunks + cut.chunks * task.width, static_cast<Weight*>(task.bias_slope)},
        cut.chunks, task.width, stream);
  });
}

}  // namespace longspan::cuda
