#include <algorithm>

#include "longspan/kernels/cuda/pool.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;

// How spans become threads: a group of `rows` times `lanes` of them has one piece of
// the columns of one span. All are powers of 2.
struct SpanThreads {
  int lanes, rows, groups;
  int64_t count;  // of groups with work
  Divisor pieces_of_span, spans_of_head, heads_of_example;

  SpanThreads(const PoolTokens& tokens, const Spans& spans, int64_t packs)
      : SpanThreads(tokens, spans, power_for(packs, 8),
                    parts_of(packs, power_for(packs, 8))) {}

  int threads() const { return lanes * rows * groups; }
  unsigned blocks() const { return static_cast<unsigned>(parts_of(count, groups)); }

 private:
  SpanThreads(const PoolTokens& tokens, const Spans& spans, int lanes_of_row,
              int64_t pieces)
      : lanes(lanes_of_row),
        rows(power_for(spans.length / 4, kMostThreads / lanes)),
        groups(std::max(1, kThreads / (lanes * rows))),
        count(tokens.examples * tokens.heads * spans.count * pieces),
        pieces_of_span(pieces, count + groups),
        spans_of_head(spans.count, count + groups),
        heads_of_example(tokens.heads, count + groups) {}
};

__device__ int64_t begin_of(const Spans& spans, int64_t span) {
  return spans.ends ? spans.ends[2 * span] : span * spans.stride;
}

__device__ int64_t end_of(const Spans& spans, int64_t span, int64_t tokens) {
  if (spans.ends) return spans.ends[2 * span + 1];
  const int64_t end = span * spans.stride + spans.size;
  return end < tokens ? end : tokens;
}

// The work of this thread.
struct SpanPart {
  int lane, row, group_size, in_group;
  bool is_work;
  int64_t example, head, result;  // the row of all results
  int64_t column;
  int64_t from = 0, to = 0;

  __device__ SpanPart(const SpanThreads& threads, const PoolTokens& tokens,
                      const Spans& spans, int count) {
    group_size = threads.lanes * threads.rows;
    in_group = threadIdx.x % group_size;
    lane = threadIdx.x % threads.lanes;
    row = in_group / threads.lanes;
    const int64_t item =
        static_cast<int64_t>(blockIdx.x) * threads.groups + threadIdx.x / group_size;
    is_work = item < threads.count;
    result = threads.pieces_of_span.quotient(item);
    column = (threads.pieces_of_span.remainder(item) * threads.lanes + lane) * count;
    const int64_t heads = threads.spans_of_head.quotient(result);
    example = threads.heads_of_example.quotient(heads);
    head = threads.heads_of_example.remainder(heads);
    if (!is_work) return;
    const int64_t span = threads.spans_of_head.remainder(result);
    from = begin_of(spans, span);
    to = end_of(spans, span, tokens.tokens);
  }
};

// The largest of a group, for all of it. All threads of the block must be here.
template <class Number>
__device__ Number largest_of_group(Number x, const SpanPart& part, Number* shared) {
  for (int half = part.group_size / 2; half > 0; half /= 2) {
    if (part.in_group >= half && part.in_group < 2 * half) shared[threadIdx.x] = x;
    __syncthreads();
    if (part.in_group < half) {
      const Number other = shared[threadIdx.x + half];
      x = other > x ? other : x;
    }
  }
  if (part.in_group == 0) shared[threadIdx.x] = x;
  __syncthreads();
  x = shared[threadIdx.x - part.in_group];
  __syncthreads();  // it may be written again
  return x;
}

template <class Number, bool with_scores>
__global__ void __launch_bounds__(kMostThreads)
    weigh_spans(const __grid_constant__ PoolSpans task,
                const __grid_constant__ SpanThreads threads, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  extern __shared__ __align__(16) char memory[];
  In* const shared = reinterpret_cast<In*>(memory);  // [kCount + 1, threads]
  const SpanPart part(threads, task.tokens, task.spans, kCount);
  const HeadTokens<Number> tokens{task.tokens, part.example, part.head};

  In base = kNothing<In>;
  if constexpr (with_scores) {
    for (int64_t token = part.from + part.in_group; token < part.to;
         token += part.group_size) {
      const In score = tokens.score(token);
      base = score > base ? score : base;
    }
    base = largest_of_group(base, part, shared);
  }

  Values<Number> sums = {};
  In total = 0;
#pragma unroll 4
  for (int64_t token = part.from + part.row; token < part.to; token += threads.rows) {
    const Values<Number> x = widened(tokens.x(token, part.column, aligned));
    In weight;
    if constexpr (with_scores)
      weight = weight_of(tokens.score(token), base);
    else
      weight = tokens.is_kept(token) ? 1 : 0;
    // Without weight no value counts, not even one that is not finite.
    if (weight != 0) add(sums, x, weight);
    total += weight;
  }

  for (int half = threads.rows / 2; half > 0; half /= 2) {
    if (part.row >= half && part.row < 2 * half) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        shared[i * blockDim.x + threadIdx.x] = sums.at[i];
      shared[kCount * blockDim.x + threadIdx.x] = total;
    }
    __syncthreads();
    if (part.row >= half) continue;
    const int other = threadIdx.x + half * threads.lanes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums.at[i] += shared[i * blockDim.x + other];
    total += shared[kCount * blockDim.x + other];
  }
  if (part.row > 0 || !part.is_work) return;

  const In factor = total == 0 ? 0 : task.divided ? 1 / total : 1;
  scale(sums, factor);
  const int64_t width = task.tokens.width;
  store(sums, static_cast<Number*>(task.pooled.out) + part.result * width + part.column,
        width - part.column, aligned);
  if (part.column > 0) return;
  static_cast<In*>(task.pooled.factor)[part.result] = factor;
  if constexpr (with_scores) {
    static_cast<In*>(task.pooled.base)[part.result] = base;
    static_cast<In*>(task.pooled.lse)[part.result] =
        total == 0 ? kNothing<In> : base + log(total);
  }
}

template <class Number>
__global__ void __launch_bounds__(kMostThreads)
    find_largest(const __grid_constant__ LargestOfSpans task,
                 const __grid_constant__ SpanThreads threads, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  extern __shared__ __align__(16) char memory[];
  In* const shared = reinterpret_cast<In*>(memory);  // [kCount, threads]
  auto* const shared_place = reinterpret_cast<int32_t*>(shared + kCount * blockDim.x);
  const SpanPart part(threads, task.tokens, task.spans, kCount);
  const HeadTokens<Number> tokens{task.tokens, part.example, part.head};

  Values<Number> largest = {};
  int32_t place[kCount];
#pragma unroll
  for (auto& one : place) one = -1;
#pragma unroll 4
  for (int64_t token = part.from + part.row; token < part.to; token += threads.rows) {
    const Values<Number> x = widened(tokens.x(token, part.column, aligned));
    if (!tokens.is_kept(token)) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (place[i] < 0 || is_larger(x.at[i], largest.at[i])) {
        largest.at[i] = x.at[i];
        place[i] = static_cast<int32_t>(token);
      }
  }

  for (int half = threads.rows / 2; half > 0; half /= 2) {
    if (part.row >= half && part.row < 2 * half)
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        shared[i * blockDim.x + threadIdx.x] = largest.at[i];
        shared_place[i * blockDim.x + threadIdx.x] = place[i];
      }
    __syncthreads();
    if (part.row >= half) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int other = i * blockDim.x + threadIdx.x + half * threads.lanes;
      const In x = shared[other];
      const int32_t x_place = shared_place[other];
      // Of equal ones, and of two that are not numbers, the first.
      const bool is_sooner = x_place < place[i] && !is_larger(largest.at[i], x);
      if (x_place >= 0 && (place[i] < 0 || is_sooner || is_larger(x, largest.at[i]))) {
        largest.at[i] = x;
        place[i] = x_place;
      }
    }
  }
  if (part.row > 0 || !part.is_work) return;
  const int64_t width = task.tokens.width, first = part.result * width + part.column;
  store(largest, static_cast<Number*>(task.out) + first, width - part.column, aligned);
  if (!task.place) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (part.column + i < width) task.place[first + i] = place[i];
}

// work(span) for the spans that hold `token`, ascending.
template <class Work>
__device__ void each_span_of(const Spans& spans, int64_t token, const Work& work) {
  if (spans.ends) {
    const int64_t block = token / kSpanBlock;
    for (int32_t i = spans.starts[block]; i < spans.starts[block + 1]; ++i) {
      const int32_t span = spans.which[i];
      if (spans.ends[2 * span] <= token && token < spans.ends[2 * span + 1]) work(span);
    }
    return;
  }
  const auto stride = static_cast<uint32_t>(spans.stride);
  const int64_t before = token - spans.size;  // the last that is too early
  const int64_t first = before < 0 ? 0 : static_cast<uint32_t>(before) / stride + 1;
  const int64_t last = static_cast<uint32_t>(token) / stride;
  for (int64_t span = first; span <= last && span < spans.count; ++span) work(span);
}

// One row of threads for every token.
template <class Number, bool with_scores>
__global__ void __launch_bounds__(kRowThreads)
    weigh_spans_gradient(const __grid_constant__ PoolSpansGradient task,
                         const __grid_constant__ RowThreads threads, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  const Row row(threads);
  if (row.index >= threads.count) return;
  const HeadTokens<Number> tokens{task.tokens, row.example, row.head};
  const int64_t width = task.tokens.width;
  const int64_t results =
      (row.example * task.tokens.heads + row.head) * task.spans.count;
  const bool is_kept = tokens.is_kept(row.row);
  In score = 0;
  if constexpr (with_scores) score = tokens.score(row.row);

  In product = 0, offsets = 0;
  for (int64_t column = row.lane * kCount; column < width;
       column += threads.lanes * kCount) {
    Values<Number> slope = {};
    bool counts = false;
    offsets = 0;
    const auto take = [&](int64_t span) {
      In weight = static_cast<const In*>(task.factor)[results + span];
      if constexpr (with_scores)
        if (weight != 0)
          weight *= weight_of(score, static_cast<const In*>(task.base)[results + span]);
      if (weight == 0) return;
      counts = true;
      add(slope,
          load(row_of<Number>(task.out_slope, row.example, row.head, span) + column,
               width - column, aligned),
          weight);
      if constexpr (with_scores)
        if (task.scores_slope)
          offsets += weight * static_cast<const In*>(task.offset)[results + span];
    };
    if (is_kept) each_span_of(task.spans, row.row, take);
    if (task.x_slope)
      store(slope, static_cast<Number*>(task.x_slope) + row.index * width + column,
            width - column, aligned);
    if constexpr (with_scores)
      if (task.scores_slope && counts)
        product += dot(slope, widened(tokens.x(row.row, column, aligned)));
  }
  if constexpr (with_scores) {
    if (!task.scores_slope) return;
    product = sum_of_lanes(product, threads.lanes);
    if (row.lane == 0)
      static_cast<In*>(task.scores_slope)[row.index] = product - offsets;
  }
}

template <class Number>
__global__ void __launch_bounds__(kRowThreads)
    find_largest_gradient(const __grid_constant__ LargestOfSpansGradient task,
                          const __grid_constant__ RowThreads threads, bool aligned) {
  constexpr int kCount = Values<Number>::kCount;
  const Row row(threads);
  if (row.index >= threads.count) return;
  const int64_t width = task.tokens.width;
  const int64_t results =
      (row.example * task.tokens.heads + row.head) * task.spans.count;
  for (int64_t column = row.lane * kCount; column < width;
       column += threads.lanes * kCount) {
    const int64_t left = width - column;
    Values<Number> sums = {};
    each_span_of(task.spans, row.row, [&](int64_t span) {
      const int32_t* const place = task.place + (results + span) * width + column;
      const Values<Number> slope =
          load(row_of<Number>(task.out_slope, row.example, row.head, span) + column,
               left, aligned);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (i < left && place[i] == row.row) sums.at[i] += slope.at[i];
    });
    store(sums, static_cast<Number*>(task.x_slope) + row.index * width + column, left,
          aligned);
  }
}

template <class Number>
__global__ void __launch_bounds__(kRowThreads)
    find_offsets(const __grid_constant__ PoolOffsets task,
                 const __grid_constant__ RowThreads threads, bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  const Row row(threads);
  if (row.index >= threads.count) return;
  In product = 0;
  for (int64_t column = row.lane * kCount; column < task.width;
       column += threads.lanes * kCount) {
    const int64_t left = task.width - column;
    product += dot(load(row.of<Number>(task.out) + column, left, aligned),
                   load(row.of<Number>(task.out_slope) + column, left, aligned));
  }
  product = sum_of_lanes(product, threads.lanes);
  if (row.lane == 0)
    static_cast<In*>(task.offset)[row.index] = product - *row.of<In>(task.lse_slope);
}

template <class Number>
int64_t packs_of(int64_t width) {
  return parts_of(width, kPackOf<Number>);
}

template <class Number>
RowThreads row_threads(const PoolTokens& tokens) {
  return RowThreads(tokens.examples, tokens.heads, tokens.tokens,
                    packs_of<Number>(tokens.width));
}

}  // namespace

int pool_offsets(const PoolOffsets& task, Stream stream) {
  return with_number(task.type, [&](auto number) -> int {
    using Number = decltype(number);
    const RowThreads threads(task.examples, task.heads, task.rows,
                             packs_of<Number>(task.width));
    if (threads.count == 0) return cudaSuccess;
    find_offsets<Number><<<threads.blocks(), kRowThreads, 0, stream>>>(
        task, threads,
        are_aligned<Number>(task.out) && are_aligned<Number>(task.out_slope));
    return cudaGetLastError();
  });
}

int pool_spans(const PoolSpans& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    const SpanThreads threads(task.tokens, task.spans,
                              packs_of<Number>(task.tokens.width));
    if (threads.count == 0) return cudaSuccess;
    const bool aligned =
        are_aligned<Number>(task.tokens.x) &&
        are_aligned<Number>(threads.count, task.tokens.width, {task.pooled.out});
    const size_t shared =
        sizeof(Inner<Number>) * (kPackOf<Number> + 1) * threads.threads();
    const auto kernel = task.tokens.scores.data ? weigh_spans<Number, true>
                                                : weigh_spans<Number, false>;
    kernel<<<threads.blocks(), threads.threads(), shared, stream>>>(task, threads,
                                                                    aligned);
    return cudaGetLastError();
  });
}

int pool_spans_gradient(const PoolSpansGradient& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    const auto threads = row_threads<Number>(task.tokens);
    if (threads.count == 0) return cudaSuccess;
    const bool aligned =
        are_aligned<Number>(task.tokens.x) && are_aligned<Number>(task.out_slope) &&
        are_aligned<Number>(threads.count, task.tokens.width, {task.x_slope});
    const auto kernel = task.tokens.scores.data ? weigh_spans_gradient<Number, true>
                                                : weigh_spans_gradient<Number, false>;
    kernel<<<threads.blocks(), kRowThreads, 0, stream>>>(task, threads, aligned);
    return cudaGetLastError();
  });
}

int largest_of_spans(const LargestOfSpans& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    const SpanThreads threads(task.tokens, task.spans,
                              packs_of<Number>(task.tokens.width));
    if (threads.count == 0) return cudaSuccess;
    const bool aligned =
        are_aligned<Number>(task.tokens.x) &&
        are_aligned<Number>(threads.count, task.tokens.width, {task.out});
    const size_t shared =
        (sizeof(Inner<Number>) + sizeof(int32_t)) * kPackOf<Number> * threads.threads();
    find_largest<Number><<<threads.blocks(), threads.threads(), shared, stream>>>(
        task, threads, aligned);
    return cudaGetLastError();
  });
}

int largest_of_spans_gradient(const LargestOfSpansGradient& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    const auto threads = row_threads<Number>(task.tokens);
    if (threads.count == 0) return cudaSuccess;
    const bool aligned =
        are_aligned<Number>(task.out_slope) &&
        are_aligned<Number>(threads.count, task.tokens.width, {task.x_slope});
    find_largest_gradient<Number>
        <<<threads.blocks(), kRowThreads, 0, stream>>>(task, threads, aligned);
    return cudaGetLastError();
  });
}

}  // namespace longspan::cuda
