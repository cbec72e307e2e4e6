// What pooling over spans and over prefixes share.

#pragma once

#include <cmath>

#include "longspan/kernels/cuda/pool.h"
#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

template <class Number>
constexpr Number kNothing = -INFINITY;

// The tokens of one head.
template <class Number>
struct HeadTokens {
  const PoolTokens& tokens;
  int64_t example, head;

  __device__ bool is_kept(int64_t token) const {
    return !tokens.keep.data || *row_of<bool>(tokens.keep, example, head, token);
  }

  // Minus infinity where the token does not count.
  __device__ Inner<Number> score(int64_t token) const {
    using In = Inner<Number>;
    return is_kept(token) ? *row_of<In>(tokens.scores, example, head, token)
                          : kNothing<In>;
  }

  __device__ Pack<Number> x(int64_t token, int64_t column, bool aligned) const {
    return load_pack<kPackOf<Number>>(
        row_of<Number>(tokens.x, example, head, token) + column, tokens.width - column,
        aligned);
  }
};

// exp(score - base); 0 for a score of minus infinity.
template <class Number>
__device__ Number weight_of(Number score, Number base) {
  return exp(base == kNothing<Number> ? score : score - base);
}

// Where x becomes the largest: NaN does and stays.
template <class Number>
__device__ bool is_larger(Number x, Number largest) {
  return x > largest || (x != x && largest == largest);
}

template <class Number>
__device__ void add(Values<Number>& to, const Values<Number>& more,
                    Inner<Number> weight) {
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i) to.at[i] += weight * more.at[i];
}

template <class Number>
__device__ void scale(Values<Number>& values, Inner<Number> factor) {
#pragma unroll
  for (auto& value : values.at) value *= factor;
}

template <class Number>
__device__ Inner<Number> dot(const Values<Number>& x, const Values<Number>& y) {
  Inner<Number> sum = 0;
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i) sum += x.at[i] * y.at[i];
  return sum;
}

}  // namespace
}  // namespace longspan::cuda
