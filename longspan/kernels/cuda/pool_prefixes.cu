// Prefixes are pooled in chunks of tokens, in three steps: what every chunk gives by
// itself; what comes to it from the chunks before it, or for gradients after it; and
// the results. Segments of one chunk need only the last step.

#include <algorithm>

#include "longspan/kernels/cuda/pool.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 8;  // tokens that are loaded together

// Scores may rise this far above the base of a prefix before its sums are rescaled:
// seldom, so that rounding does not add up.
constexpr int kReach = 20;

// What the tokens of a prefix weigh when the base has become `base`, seen from one
// where it was `before`.
template <class Number>
__device__ Number rescaling(Number before, Number base) {
  return before == base ? 1 : exp(before - base);
}

// How chunks become threads: `lanes` of them, next to each other, have one piece of the
// columns of one chunk.
struct ChunkThreads {
  int lanes;
  int64_t pieces, segment, segments;
  int64_t chunk;                      // tokens
  int64_t chunks_of_segment, chunks;  // of a segment, of a head
  int64_t heads;                      // of all examples
  int64_t count;                      // of pieces of chunks
  Divisor by_pieces, by_chunks, by_segment, by_heads;

  ChunkThreads(const PoolTokens& tokens, int64_t segment_length, int64_t packs)
      : lanes(power_for(packs, kWarp)),
        pieces(parts_of(packs, lanes)),
        segment(segment_length),
        segments(parts_of(tokens.tokens, segment)),
        chunk(chunk_of(tokens, packs)),
        chunks_of_segment(parts_of(segment, chunk)),
        chunks(segments * chunks_of_segment),
        heads(tokens.examples * tokens.heads),
        count(heads * chunks * pieces),
        by_pieces(pieces, count + kThreads),
        by_chunks(chunks, count + kThreads),
        by_segment(chunks_of_segment, chunks),
        by_heads(tokens.heads, count + kThreads) {}

  bool has_steps() const { return chunks_of_segment > 1; }
  unsigned blocks() const {
    return static_cast<unsigned>(parts_of(count * lanes, kThreads));
  }

 private:
  int64_t chunk_of(const PoolTokens& tokens, int64_t packs) const {
    constexpr int64_t kShort = 512, kEnoughThreads = 65536, kFewChunks = 256;
    const int64_t threads = tokens.examples * tokens.heads * segments * packs;
    if (segment <= kShort && threads >= kEnoughThreads) return segment;
    return std::max(32, power_for(segment / kFewChunks, 1024));
  }
};

// The piece of a chunk of this thread.
struct ChunkPart {
  bool is_work;
  int lane;
  int64_t piece, column;
  int64_t chunk;  // of all heads
  int64_t heads, example, head;
  int64_t segment, segment_begin;
  int64_t begin, end;      // tokens
  bool is_first, is_last;  // of its segment

  __device__ ChunkPart(const ChunkThreads& threads, int64_t tokens, int count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t item = over_power(thread, threads.lanes);
    lane = threadIdx.x % threads.lanes;
    piece = threads.by_pieces.remainder(item);
    column = (piece * threads.lanes + lane) * count;
    chunk = threads.by_pieces.quotient(item);
    heads = threads.by_chunks.quotient(chunk);
    example = threads.by_heads.quotient(heads);
    head = threads.by_heads.remainder(heads);
    const int64_t in_head = threads.by_chunks.remainder(chunk);
    segment = threads.by_segment.quotient(in_head);
    const int64_t in_segment = threads.by_segment.remainder(in_head);
    segment_begin = segment * threads.segment;
    begin = segment_begin + in_segment * threads.chunk;
    const int64_t segment_end = least(segment_begin + threads.segment, tokens);
    end = least(begin + threads.chunk, segment_end);
    is_first = in_segment == 0;
    is_last = end == segment_end;
    is_work = item < threads.count && begin < end;  // the last segment may be shorter
  }

  __device__ static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
};

// Memory between the steps, by chunk of all heads.
template <class Number>
struct Scratch {
  Number *sums, *carries, *closed;                      // [chunks, width]
  Number *base, *total, *carried_base, *carried_total;  // [chunks]
  int32_t* first_kept;                                  // [heads, segments]

  Scratch(void* memory, const ChunkThreads& threads, int64_t width) {
    const int64_t chunks = threads.has_steps() ? threads.heads * threads.chunks : 0;
    auto* next = static_cast<Number*>(memory);
    const auto take = [&](int64_t count) {
      Number* const taken = next;
      next += count;
      return taken;
    };
    sums = take(chunks * width);
    carries = take(chunks * width);
    closed = take(chunks * width);
    base = take(chunks);
    total = take(chunks);
    carried_base = take(chunks);
    carried_total = take(chunks);
    first_kept = reinterpret_cast<int32_t*>(next);
  }

  static int64_t size(const ChunkThreads& threads, int64_t width) {
    const int64_t chunks = threads.has_steps() ? threads.heads * threads.chunks : 0;
    return chunks * (3 * width + 4) + threads.heads * threads.segments;
  }
};

enum class By { kEqual, kScores, kLargest };

// What the tokens of a prefix so far give, in some columns: sums, or the largest.
template <class Number, By by>
struct Prefix {
  using In = Inner<Number>;
  In base = kNothing<In>;
  In total = 0;  // weights
  Values<Number> values;

  __device__ Prefix() {
#pragma unroll
    for (auto& value : values.at) value = by == By::kLargest ? kNothing<In> : 0;
  }

  // Returns by what all that was summed before is to be multiplied.
  __device__ In take(const Values<Number>& x, bool is_kept, In score) {
    In factor = 1, weight = is_kept ? 1 : 0;
    if constexpr (by == By::kScores) {
      if (score > base + kReach) {
        factor = rescaling(base, score);
        base = score;
        scale(values, factor);
        total *= factor;
      }
      weight = weight_of(score, base);
    }
    total += weight;
    // Without weight no value counts, not even one that is not finite.
    if (weight == 0) return factor;
    if constexpr (by == By::kLargest) {
#pragma unroll
      for (int i = 0; i < Values<Number>::kCount; ++i)
        if (is_larger(x.at[i], values.at[i])) values.at[i] = x.at[i];
    } else {
      add(values, x, weight);
    }
    return factor;
  }
};

// work(token, x, is kept, score) for the tokens of a chunk, in their order.
template <class Number, By by, class Work>
__device__ void each_token(const HeadTokens<Number>& tokens, const ChunkPart& part,
                           bool aligned, const Work& work) {
  using In = Inner<Number>;
  for (int64_t first = part.begin; first < part.end; first += kAtOnce) {
    Pack<Number> x[kAtOnce];
    bool is_kept[kAtOnce];
    In score[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < part.end) {
        x[i] = tokens.x(first + i, part.column, aligned);
        is_kept[i] = tokens.is_kept(first + i);
        if constexpr (by == By::kScores) score[i] = tokens.score(first + i);
      }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < part.end)
        work(first + i, widened(x[i]), is_kept[i], by == By::kScores ? score[i] : 0);
  }
}

// The first step.
template <class Number, By by>
__global__ void __launch_bounds__(kThreads)
    pool_chunks(const __grid_constant__ PoolTokens given,
                const __grid_constant__ ChunkThreads threads,
                const __grid_constant__ Scratch<Inner<Number>> scratch, bool aligned) {
  using In = Inner<Number>;
  const ChunkPart part(threads, given.tokens, Values<Number>::kCount);
  if (!part.is_work || part.is_last) return;
  const HeadTokens<Number> tokens{given, part.example, part.head};
  Prefix<Number, by> prefix;
  each_token<Number, by>(tokens, part, aligned,
                         [&](int64_t, const Values<Number>& x, bool is_kept, In score) {
                           prefix.take(x, is_kept, score);
                         });
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i)
    if (part.column + i < given.width)
      scratch.sums[part.chunk * given.width + part.column + i] = prefix.values.at[i];
  if (part.column > 0) return;
  scratch.base[part.chunk] = prefix.base;
  scratch.total[part.chunk] = prefix.total;
}

// A column of a segment, for the second steps.
struct ColumnOfSegment {
  bool is_work;
  int64_t column;
  int64_t first_chunk, chunks;  // of all heads, and how many
  int64_t heads, begin;         // the segment's first token

  __device__ ColumnOfSegment(const ChunkThreads& threads, const PoolTokens& tokens) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t segments = thread / tokens.width;
    column = thread - segments * tokens.width;
    is_work = segments < threads.heads * threads.segments;
    heads = segments / threads.segments;
    const int64_t segment = segments - heads * threads.segments;
    begin = segment * threads.segment;
    first_chunk = segments * threads.chunks_of_segment;
    const int64_t count = ChunkPart::least(threads.segment, tokens.tokens - begin);
    chunks = (count + threads.chunk - 1) / threads.chunk;
  }
};

// The second step: what comes to a chunk from those before it.
template <class Number, By by>
__global__ void __launch_bounds__(kThreads)
    carry_forward(const __grid_constant__ PoolTokens given,
                  const __grid_constant__ ChunkThreads threads,
                  const __grid_constant__ Scratch<Number> scratch) {
  const ColumnOfSegment at(threads, given);
  if (!at.is_work) return;
  const Number* __restrict__ const sums = scratch.sums;
  const Number* __restrict__ const bases = scratch.base;
  const Number* __restrict__ const totals = scratch.total;
  Number* __restrict__ const carries = scratch.carries;
  Number base = kNothing<Number>, largest = kNothing<Number>;
  double sum = 0, total = 0;
#pragma unroll 4
  for (int64_t i = 0; i < at.chunks; ++i) {
    const int64_t chunk = at.first_chunk + i, place = chunk * given.width + at.column;
    carries[place] = by == By::kLargest ? largest : static_cast<Number>(sum);
    if (at.column == 0) {
      scratch.carried_base[chunk] = base;
      scratch.carried_total[chunk] = static_cast<Number>(total);
    }
    if (i + 1 == at.chunks) break;  // what it gives is not asked for
    if constexpr (by == By::kLargest) {
      if (totals[chunk] != 0 && is_larger(sums[place], largest)) largest = sums[place];
      total += totals[chunk];
    } else if constexpr (by == By::kScores) {
      const Number next = bases[chunk];
      if (next > base + kReach) {
        const Number factor = rescaling(base, next);
        sum *= factor;
        total *= factor;
        base = next;
      }
      const Number factor = weight_of(next, base);
      if (factor == 0) continue;
      sum += static_cast<double>(factor) * sums[place];
      total += static_cast<double>(factor) * totals[chunk];
    } else {
      sum += sums[place];
      total += totals[chunk];
    }
  }
}

// The last step.
template <class Number, By by>
__global__ void __launch_bounds__(kThreads)
    pool_prefix_tokens(const __grid_constant__ PoolTokens given,
                       const __grid_constant__ PooledRows pooled, bool divided,
                       const __grid_constant__ ChunkThreads threads,
                       const __grid_constant__ Scratch<Inner<Number>> scratch,
                       bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount;
  const ChunkPart part(threads, given.tokens, kCount);
  if (!part.is_work) return;
  const HeadTokens<Number> tokens{given, part.example, part.head};
  const int64_t left = given.width - part.column;
  Prefix<Number, by> prefix;
  Values<Number> carry = {};
  In carried_total = 0;
  if (!part.is_first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < left)
        carry.at[i] = scratch.carries[part.chunk * given.width + part.column + i];
    carried_total = scratch.carried_total[part.chunk];
    if constexpr (by == By::kScores) prefix.base = scratch.carried_base[part.chunk];
    if constexpr (by == By::kLargest)
      if (carried_total != 0) prefix.values = carry;
  }
  each_token<Number, by>(
      tokens, part, aligned,
      [&](int64_t token, const Values<Number>& x, bool is_kept, In score) {
        const In rescaled = prefix.take(x, is_kept, score);
        if (by == By::kScores && rescaled != 1) {
          scale(carry, rescaled);
          carried_total *= rescaled;
        }
        const In total = carried_total + prefix.total;
        const In factor = total == 0 ? 0 : divided ? 1 / total : 1;
        Values<Number> out = prefix.values;
        if constexpr (by == By::kLargest) {
          if (total == 0) out = {};
        } else {
          add(out, carry, In{1});
          scale(out, factor);
        }
        const int64_t row = part.heads * given.tokens + token;
        store(out, static_cast<Number*>(pooled.out) + row * given.width + part.column,
              left, aligned);
        if (by == By::kLargest || part.column > 0) return;
        static_cast<In*>(pooled.factor)[row] = factor;
        if constexpr (by == By::kScores) {
          static_cast<In*>(pooled.base)[row] = prefix.base;
          static_cast<In*>(pooled.lse)[row] =
              total == 0 ? kNothing<In> : prefix.base + log(total);
        }
      });
}

// The sums of factor * out_slope, and of factor * offset, over the prefixes that hold a
// token: those of later tokens in the chunk.
template <class Number>
struct Suffix {
  Values<Number> slopes = {};
  Inner<Number> offset = 0;

  __device__ void rescale(Inner<Number> factor) {
    scale(slopes, factor);
    offset *= factor;
  }
};

// What the gradients of prefixes need of a token.
template <class Number>
struct TokenSlopes {
  Inner<Number> base, next_base, factor, offset;
  Pack<Number> out_slope;

  // With `next_base` of the token itself where `is_end`.
  template <bool with_scores>
  __device__ void load(const PoolPrefixesGradient& task, const ChunkPart& part,
                       int64_t token, bool is_end, bool aligned) {
    using In = Inner<Number>;
    const int64_t row = part.heads * task.tokens.tokens + token;
    factor = static_cast<const In*>(task.factor)[row];
    out_slope = load_pack<kPackOf<Number>>(
        row_of<Number>(task.out_slope, part.example, part.head, token) + part.column,
        task.tokens.width - part.column, aligned);
    if constexpr (with_scores) {
      base = static_cast<const In*>(task.base)[row];
      next_base = is_end ? base : static_cast<const In*>(task.base)[row + 1];
      offset = task.offset ? static_cast<const In*>(task.offset)[row] : 0;
    }
  }

  // Returns by what all that was summed before is to be multiplied.
  template <bool with_scores>
  __device__ Inner<Number> add_to(Suffix<Number>& suffix) const {
    Inner<Number> rescaled = 1;
    if constexpr (with_scores) {
      rescaled = rescaling(base, next_base);
      if (rescaled != 1) suffix.rescale(rescaled);
    }
    if (factor == 0) return rescaled;
    add(suffix.slopes, widened(out_slope), factor);
    if constexpr (with_scores) suffix.offset += factor * offset;
    return rescaled;
  }
};

// The first step of gradients: what the prefixes of a chunk give its first token.
template <class Number, bool with_scores>
__global__ void __launch_bounds__(kThreads)
    pool_chunks_gradient(const __grid_constant__ PoolPrefixesGradient task,
                         const __grid_constant__ ChunkThreads threads,
                         const __grid_constant__ Scratch<Inner<Number>> scratch,
                         bool aligned) {
  const int64_t width = task.tokens.width;
  const ChunkPart part(threads, task.tokens.tokens, Values<Number>::kCount);
  if (!part.is_work || part.is_first) return;
  Suffix<Number> suffix;
  for (int64_t last = part.end - 1; last >= part.begin; last -= kAtOnce) {
    TokenSlopes<Number> slopes[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (last - i >= part.begin)
        slopes[i].template load<with_scores>(task, part, last - i,
                                             last - i + 1 == part.end, aligned);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (last - i >= part.begin) slopes[i].template add_to<with_scores>(suffix);
  }
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i)
    if (part.column + i < width)
      scratch.sums[part.chunk * width + part.column + i] = suffix.slopes.at[i];
  if (part.column == 0) scratch.total[part.chunk] = suffix.offset;
}

// The second step of gradients: what the prefixes of later chunks give the first token
// of the next chunk. `base`: of tokens, or null.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    carry_back(const __grid_constant__ PoolTokens given,
               const __grid_constant__ ChunkThreads threads,
               const __grid_constant__ Scratch<Number> scratch, const Number* base) {
  const ColumnOfSegment at(threads, given);
  if (!at.is_work) return;
  const Number* __restrict__ const sums = scratch.sums;
  const Number* __restrict__ const offsets = scratch.total;
  Number* __restrict__ const carries = scratch.carries;
  double sum = 0, offset = 0;
#pragma unroll 4
  for (int64_t i = at.chunks - 1; i >= 0; --i) {
    const int64_t chunk = at.first_chunk + i, place = chunk * given.width + at.column;
    carries[place] = static_cast<Number>(sum);
    if (at.column == 0) scratch.carried_total[chunk] = static_cast<Number>(offset);
    if (i == 0) break;
    if (base && i + 1 < at.chunks) {
      const int64_t token = at.heads * given.tokens + at.begin + i * threads.chunk;
      const Number factor = rescaling(base[token], base[token + threads.chunk]);
      sum *= factor;
      offset *= factor;
    }
    sum += sums[place];
    offset += offsets[chunk];
  }
}

// The last step of gradients.
template <class Number, bool with_scores>
__global__ void __launch_bounds__(kThreads)
    prefix_tokens_gradient(const __grid_constant__ PoolPrefixesGradient task,
                           const __grid_constant__ ChunkThreads threads,
                           const __grid_constant__ Scratch<Inner<Number>> scratch,
                           bool aligned) {
  using In = Inner<Number>;
  constexpr int kCount = Values<Number>::kCount, kSome = kAtOnce / 2;
  const PoolTokens& given = task.tokens;
  const ChunkPart part(threads, given.tokens, kCount);
  if (!part.is_work) return;
  const HeadTokens<Number> tokens{given, part.example, part.head};
  const int64_t left = given.width - part.column;
  const int64_t rows = part.heads * given.tokens;
  Suffix<Number> suffix, carry;
  if (!part.is_last) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < left)
        carry.slopes.at[i] =
            scratch.carries[part.chunk * given.width + part.column + i];
    if constexpr (with_scores) {
      carry.offset = scratch.carried_total[part.chunk];
      const In* const base = static_cast<const In*>(task.base) + rows + part.end;
      carry.rescale(rescaling(base[-1], base[0]));
    }
  }
  for (int64_t last = part.end - 1; last >= part.begin; last -= kSome) {
    TokenSlopes<Number> slopes[kSome];
    Pack<Number> x[kSome];
    bool is_kept[kSome];
    In score[kSome];
#pragma unroll
    for (int i = 0; i < kSome; ++i) {
      const int64_t token = last - i;
      if (token < part.begin) continue;
      slopes[i].template load<with_scores>(task, part, token, token + 1 == part.end,
                                           aligned);
      is_kept[i] = tokens.is_kept(token);
      if constexpr (with_scores) {
        score[i] = tokens.score(token);
        if (task.scores_slope) x[i] = tokens.x(token, part.column, aligned);
      }
    }
#pragma unroll
    for (int i = 0; i < kSome; ++i) {
      const int64_t token = last - i;
      if (token < part.begin) continue;
      const In rescaled = slopes[i].template add_to<with_scores>(suffix);
      if (with_scores && rescaled != 1) carry.rescale(rescaled);
      In weight = is_kept[i] ? 1 : 0;
      if constexpr (with_scores) weight = weight_of(score[i], slopes[i].base);
      Values<Number> slope = {};
      if (weight != 0) {
        slope = suffix.slopes;
        add(slope, carry.slopes, In{1});
        scale(slope, weight);
      }
      if (task.x_slope)
        store(slope,
              static_cast<Number*>(task.x_slope) + (rows + token) * given.width +
                  part.column,
              left, aligned);
      if constexpr (with_scores) {
        if (!task.scores_slope) continue;
        In product = weight == 0 ? 0 : dot(slope, widened(x[i]));
        product = sum_of_lanes(product, threads.lanes);
        if (part.lane > 0) continue;
        if (part.piece == 0 && weight != 0)
          product -= weight * (suffix.offset + carry.offset);
        const int64_t piece = part.piece * threads.heads * given.tokens;
        static_cast<In*>(task.scores_slope)[piece + rows + token] = product;
      }
    }
  }
}

// The first kept token of every segment, or the segment's end: a warp for each.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    find_first_kept(const __grid_constant__ PoolTokens given,
                    const __grid_constant__ ChunkThreads threads, int32_t* to) {
  const int64_t index =
      (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (index >= threads.heads * threads.segments) return;
  const int64_t heads = index / threads.segments;
  const int64_t example = threads.by_heads.quotient(heads);
  const HeadTokens<Number> tokens{given, example, threads.by_heads.remainder(heads)};
  const int64_t begin = (index - heads * threads.segments) * threads.segment;
  const int64_t end = ChunkPart::least(begin + threads.segment, given.tokens);
  const int lane = threadIdx.x % kWarp;
  int64_t first = end;
  for (int64_t token = begin; token < end && first == end; token += kWarp) {
    const bool is_kept = token + lane < end && tokens.is_kept(token + lane);
    const unsigned kept = __ballot_sync(kAllLanes, is_kept);
    if (kept) first = token + __ffs(static_cast<int>(kept)) - 1;
  }
  if (lane == 0) to[index] = static_cast<int32_t>(first);
}

// Goes back over the prefixes of a chunk. A token has the slopes of all prefixes from
// itself, if it is larger than all before it, to the next larger one.
// work(token, which columns it is the largest of, sums of slopes for these).
template <class Number, class Work>
__device__ void each_largest(const LargestOfPrefixesGradient& task,
                             const ChunkThreads& threads, const ChunkPart& part,
                             const int32_t* first_kept, bool aligned, bool out_aligned,
                             Values<Number>& sums, const Work& work) {
  constexpr int kCount = Values<Number>::kCount, kSome = kAtOnce / 2;
  const int64_t width = task.tokens.width, left = width - part.column;
  const HeadTokens<Number> tokens{task.tokens, part.example, part.head};
  const int64_t first = first_kept
                            ? first_kept[part.heads * threads.segments + part.segment]
                            : part.segment_begin;
  const auto* const outs = static_cast<const Number*>(task.out) +
                           part.heads * task.tokens.tokens * width + part.column;
  Values<Number> out = load(outs + (part.end - 1) * width, left, out_aligned);
  for (int64_t last = part.end - 1; last >= part.begin; last -= kSome) {
    Pack<Number> slopes[kSome], before[kSome];
    bool is_kept[kSome];
#pragma unroll
    for (int i = 0; i < kSome; ++i) {
      const int64_t token = last - i;
      if (token < part.begin) continue;
      slopes[i] = load_pack<kPackOf<Number>>(
          row_of<Number>(task.out_slope, part.example, part.head, token) + part.column,
          left, aligned);
      is_kept[i] = tokens.is_kept(token);
      before[i] = {};
      if (token > part.segment_begin)
        before[i] =
            load_pack<kPackOf<Number>>(outs + (token - 1) * width, left, out_aligned);
    }
#pragma unroll
    for (int i = 0; i < kSome; ++i) {
      const int64_t token = last - i;
      if (token < part.begin) continue;
      const Values<Number> old = widened(before[i]);
      add(sums, widened(slopes[i]), Inner<Number>{1});
      bool is_new[kCount];
      Values<Number> given = {};
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        is_new[j] = is_kept[i] && (token == first ||
                                   (token > first && is_larger(out.at[j], old.at[j])));
        if (is_new[j]) {
          given.at[j] = sums.at[j];
          sums.at[j] = 0;
        }
      }
      work(token, is_new, given);
      out = old;
    }
  }
}

// The first step of gradients of the largest: the slopes that no token of the chunk
// has, and which columns have had a larger one.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    largest_of_chunks_gradient(const __grid_constant__ LargestOfPrefixesGradient task,
                               const __grid_constant__ ChunkThreads threads,
                               const __grid_constant__ Scratch<Inner<Number>> scratch,
                               const int32_t* first_kept, bool aligned,
                               bool out_aligned) {
  constexpr int kCount = Values<Number>::kCount;
  const ChunkPart part(threads, task.tokens.tokens, kCount);
  if (!part.is_work || part.is_first) return;
  Values<Number> sums = {}, closed = {};
  each_largest<Number>(
      task, threads, part, first_kept, aligned, out_aligned, sums,
      [&](int64_t, const bool(&is_new)[kCount], const Values<Number>&) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          if (is_new[i]) closed.at[i] = 1;
      });
  const int64_t width = task.tokens.width;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (part.column + i >= width) continue;
    scratch.sums[part.chunk * width + part.column + i] = sums.at[i];
    scratch.closed[part.chunk * width + part.column + i] = closed.at[i];
  }
}

// Their second step.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    carry_largest_back(const __grid_constant__ PoolTokens given,
                       const __grid_constant__ ChunkThreads threads,
                       const __grid_constant__ Scratch<Number> scratch) {
  const ColumnOfSegment at(threads, given);
  if (!at.is_work) return;
  const Number* __restrict__ const sums = scratch.sums;
  const Number* __restrict__ const closed = scratch.closed;
  Number* __restrict__ const carries = scratch.carries;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = at.chunks - 1; i >= 0; --i) {
    const int64_t place = (at.first_chunk + i) * given.width + at.column;
    carries[place] = static_cast<Number>(sum);
    if (i == 0) break;
    sum = sums[place] + (closed[place] != 0 ? 0 : sum);
  }
}

// Their last step.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    largest_of_tokens_gradient(const __grid_constant__ LargestOfPrefixesGradient task,
                               const __grid_constant__ ChunkThreads threads,
                               const __grid_constant__ Scratch<Inner<Number>> scratch,
                               const int32_t* first_kept, bool aligned,
                               bool out_aligned) {
  constexpr int kCount = Values<Number>::kCount;
  const int64_t width = task.tokens.width;
  const ChunkPart part(threads, task.tokens.tokens, kCount);
  if (!part.is_work) return;
  const int64_t left = width - part.column;
  Values<Number> sums = {};
  if (!part.is_last)
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < left) sums.at[i] = scratch.carries[part.chunk * width + part.column + i];
  each_largest<Number>(
      task, threads, part, first_kept, aligned, out_aligned, sums,
      [&](int64_t token, const bool(&)[kCount], const Values<Number>& slope) {
        const int64_t row = part.heads * task.tokens.tokens + token;
        store(slope, static_cast<Number*>(task.x_slope) + row * width + part.column,
              left, out_aligned);
      });
}

template <class Number>
ChunkThreads chunk_threads(const PoolTokens& tokens, int64_t segment) {
  return ChunkThreads(tokens, segment, parts_of(tokens.width, kPackOf<Number>));
}

unsigned column_blocks(const ChunkThreads& threads, int64_t width) {
  return static_cast<unsigned>(
      parts_of(threads.heads * threads.segments * width, kThreads));
}

template <class Number>
bool are_dense_aligned(const PoolTokens& tokens, const void* data) {
  return are_aligned<Number>(tokens.examples * tokens.heads * tokens.tokens,
                             tokens.width, {data});
}

template <class Number, By by>
int run(const PoolTokens& tokens, int64_t segment, const PooledRows& pooled,
        bool divided, void* memory, Stream stream) {
  const auto threads = chunk_threads<Number>(tokens, segment);
  if (threads.count == 0) return cudaSuccess;
  const Scratch<Inner<Number>> scratch(memory, threads, tokens.width);
  const bool aligned = are_aligned<Number>(tokens.x);
  if (threads.has_steps()) {
    pool_chunks<Number, by>
        <<<threads.blocks(), kThreads, 0, stream>>>(tokens, threads, scratch, aligned);
    if (const int error = cudaGetLastError()) return error;
    carry_forward<Inner<Number>, by>
        <<<column_blocks(threads, tokens.width), kThreads, 0, stream>>>(tokens, threads,
                                                                        scratch);
    if (const int error = cudaGetLastError()) return error;
  }
  pool_prefix_tokens<Number, by><<<threads.blocks(), kThreads, 0, stream>>>(
      tokens, pooled, divided, threads, scratch,
      aligned && are_dense_aligned<Number>(tokens, pooled.out));
  return cudaGetLastError();
}

template <class Number, bool with_scores>
int run_gradient(const PoolPrefixesGradient& task, Stream stream) {
  using In = Inner<Number>;
  const PoolTokens& tokens = task.tokens;
  const auto threads = chunk_threads<Number>(tokens, task.segment);
  if (threads.count == 0) return cudaSuccess;
  const Scratch<In> scratch(task.scratch, threads, tokens.width);
  const bool aligned =
      are_aligned<Number>(tokens.x) && are_aligned<Number>(task.out_slope);
  if (threads.has_steps()) {
    pool_chunks_gradient<Number, with_scores>
        <<<threads.blocks(), kThreads, 0, stream>>>(task, threads, scratch, aligned);
    if (const int error = cudaGetLastError()) return error;
    carry_back<In><<<column_blocks(threads, tokens.width), kThreads, 0, stream>>>(
        tokens, threads, scratch,
        with_scores ? static_cast<const In*>(task.base) : nullptr);
    if (const int error = cudaGetLastError()) return error;
  }
  prefix_tokens_gradient<Number, with_scores>
      <<<threads.blocks(), kThreads, 0, stream>>>(
          task, threads, scratch,
          aligned && are_dense_aligned<Number>(tokens, task.x_slope));
  return cudaGetLastError();
}

}  // namespace

int64_t prefix_scratch(const PoolTokens& tokens, int64_t segment) {
  int64_t size = 0;
  with_number(tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    size = Scratch<Inner<Number>>::size(chunk_threads<Number>(tokens, segment),
                                        tokens.width);
    return 0;
  });
  return size;
}

int64_t prefix_pieces(Type type, int64_t width) {
  int64_t pieces = 0;
  with_number(type, [&](auto number) -> int {
    const int64_t packs = parts_of(width, kPackOf<decltype(number)>);
    pieces = parts_of(packs, power_for(packs, kWarp));
    return 0;
  });
  return pieces;
}

int pool_prefixes(const PoolPrefixes& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    const auto run_by =
        task.tokens.scores.data ? run<Number, By::kScores> : run<Number, By::kEqual>;
    return run_by(task.tokens, task.segment, task.pooled, task.divided, task.scratch,
                  stream);
  });
}

int pool_prefixes_gradient(const PoolPrefixesGradient& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    return task.tokens.scores.data ? run_gradient<Number, true>(task, stream)
                                   : run_gradient<Number, false>(task, stream);
  });
}

int largest_of_prefixes(const LargestOfPrefixes& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    return run<decltype(number), By::kLargest>(task.tokens, task.segment,
                                               {.out = task.out}, /*divided=*/false,
                                               task.scratch, stream);
  });
}

int largest_of_prefixes_gradient(const LargestOfPrefixesGradient& task, Stream stream) {
  return with_number(task.tokens.type, [&](auto number) -> int {
    using Number = decltype(number);
    const PoolTokens& tokens = task.tokens;
    const auto threads = chunk_threads<Number>(tokens, task.segment);
    if (threads.count == 0) return cudaSuccess;
    const Scratch<Inner<Number>> scratch(task.scratch, threads, tokens.width);
    const bool aligned = are_aligned<Number>(task.out_slope);
    const bool out_aligned = are_dense_aligned<Number>(tokens, task.out) &&
                             are_dense_aligned<Number>(tokens, task.x_slope);
    int32_t* const first_kept = tokens.keep.data ? scratch.first_kept : nullptr;
    if (first_kept) {
      const int64_t warps = threads.heads * threads.segments;
      find_first_kept<Number>
          <<<static_cast<unsigned>(parts_of(warps * kWarp, kThreads)), kThreads, 0,
             stream>>>(tokens, threads, first_kept);
      if (const int error = cudaGetLastError()) return error;
    }
    if (threads.has_steps()) {
      largest_of_chunks_gradient<Number><<<threads.blocks(), kThreads, 0, stream>>>(
          task, threads, scratch, first_kept, aligned, out_aligned);
      if (const int error = cudaGetLastError()) return error;
      carry_largest_back<Inner<Number>>
          <<<column_blocks(threads, tokens.width), kThreads, 0, stream>>>(
              tokens, threads, scratch);
      if (const int error = cudaGetLastError()) return error;
    }
    largest_of_tokens_gradient<Number><<<threads.blocks(), kThreads, 0, stream>>>(
        task, threads, scratch, first_kept, aligned, out_aligned);
    return cudaGetLastError();
  });
}

}  // namespace longspan::cuda
