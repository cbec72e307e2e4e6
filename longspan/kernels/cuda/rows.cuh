// What the kernels that go over rows of numbers share. Numbers of every type are
// computed in float, doubles in double.

#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

template <class Number>
struct InnerOf {
  using Type = float;
};
template <>
struct InnerOf<double> {
  using Type = double;
};
template <class Number>
using Inner = typename InnerOf<Number>::Type;

template <class Number>
__device__ Inner<Number> widened(Number x) {
  return static_cast<Inner<Number>>(x);
}

template <class Number>
__device__ Number rounded(Inner<Number> x) {
  return static_cast<Number>(x);
}

// As many are worked on together: 16 bytes.
template <class Number>
constexpr int kPackOf = 16 / static_cast<int>(sizeof(Number));

template <class Number>
struct Values {
  static constexpr int kCount = kPackOf<Number>;
  Inner<Number> at[kCount];
};

// `count` numbers as they are in memory.
template <class Number, int count = kPackOf<Number>>
struct alignas(count * sizeof(Number) < 16 ? count * sizeof(Number) : 16) Pack {
  Number at[count];
};

// `count` numbers, or the first `left` of them and then zeros. `aligned`: they begin at
// a multiple of 16 bytes.
template <int count, class Number>
__device__ Pack<Number, count> load_pack(const Number* from, int64_t left,
                                         bool aligned) {
  Pack<Number, count> pack = {};
  if (aligned && left >= count) {
    pack = *reinterpret_cast<const Pack<Number, count>*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (i < left) pack.at[i] = from[i];
  }
  return pack;
}

template <int count, class Number>
__device__ void load(const Number* from, int64_t left, bool aligned,
                     Inner<Number> (&to)[count]) {
  const Pack<Number, count> pack = load_pack<count>(from, left, aligned);
#pragma unroll
  for (int i = 0; i < count; ++i) to[i] = widened(pack.at[i]);
}

template <class Number>
__device__ Values<Number> load(const Number* from, int64_t left, bool aligned) {
  Values<Number> values;
  load<kPackOf<Number>>(from, left, aligned, values.at);
  return values;
}

template <int count, class Number>
__device__ void store(const Inner<Number> (&values)[count], Number* to, int64_t left,
                      bool aligned) {
  Pack<Number, count> pack;
#pragma unroll
  for (int i = 0; i < count; ++i) pack.at[i] = rounded<Number>(values[i]);
  if (aligned && left >= count) {
    *reinterpret_cast<Pack<Number, count>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (i < left) to[i] = pack.at[i];
  }
}

template <class Number>
__device__ void store(const Values<Number>& values, Number* to, int64_t left,
                      bool aligned) {
  store<kPackOf<Number>>(values.at, to, left, aligned);
}

template <class Number>
__device__ Values<Number> widened(const Pack<Number>& pack) {
  Values<Number> values;
#pragma unroll
  for (int i = 0; i < Values<Number>::kCount; ++i) values.at[i] = widened(pack.at[i]);
  return values;
}

// Where a row of a head begins.
template <class Number, class Data>
__device__ const Number* row_of(const Rows<Data>& rows, int64_t example, int64_t head,
                                int64_t row) {
  return static_cast<const Number*>(rows.data) + example * rows.example +
         head * rows.head + row * rows.row;
}

// The sum over `lanes` lanes next to each other, a power of 2; all of them get the same
// bits, and all of them must be here.
template <class Number>
__device__ Number sum_of_lanes(Number x, int lanes) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned mask =
      lanes == kWarp ? kAllLanes : ((1u << lanes) - 1) << (lane / lanes * lanes);
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(mask, x, step);
  return x;
}

// Divides by multiplying, where that is exact.
class Divisor {
 public:
  // For numbers 0 .. end.
  Divisor(int64_t divisor, int64_t end) : divisor_(divisor) {
    constexpr uint64_t kMost = ~uint64_t{0};
    if (divisor_ > 1 && static_cast<uint64_t>(end) <= kMost / divisor_)
      factor_ = kMost / divisor_ + 1;
  }

  __device__ int64_t quotient(int64_t x) const {
    if (divisor_ == 1) return x;
    return factor_ ? __umul64hi(x, factor_) : static_cast<uint64_t>(x) / divisor_;
  }
  __device__ int64_t remainder(int64_t x) const {
    return x - quotient(x) * static_cast<int64_t>(divisor_);
  }

 private:
  uint64_t divisor_, factor_ = 0;
};

constexpr int64_t parts_of(int64_t count, int64_t part) {
  return (count + part - 1) / part;
}

// The least power of 2 that is not below `count`, and at most `most`, which is one.
constexpr int power_for(int64_t count, int most) {
  int power = 1;
  while (power < most && power < count) power *= 2;
  return power;
}

// Null is.
inline bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Whether all rows begin at multiples of 16 bytes.
template <class Number, class Data>
bool are_aligned(const Rows<Data>& rows) {
  const auto fits = [](int64_t stride) { return stride % kPackOf<Number> == 0; };
  return is_aligned(rows.data) && fits(rows.example) && fits(rows.head) &&
         fits(rows.row);
}

// The same of dense rows.
template <class Number>
bool are_aligned(int64_t rows, int64_t width, std::initializer_list<const void*> all) {
  return (rows == 1 || width % kPackOf<Number> == 0) &&
         std::ranges::all_of(all, is_aligned);
}

// work(number) with a number of the type.
template <class Work>
int with_number(Type type, const Work& work) {
  switch (type) {
    case Type::kDouble: return work(double());
    case Type::kFloat: return work(float());
    case Type::kHalf: return work(__half());
    case Type::kBFloat16: return work(__nv_bfloat16());
  }
  return cudaErrorInvalidValue;
}

// x / power for a power of 2, quickly.
__device__ inline int64_t over_power(int64_t x, int power) {
  return x >> (__ffs(power) - 1);
}

constexpr int kRowThreads = 256;

// How the rows of all heads become threads, kRowThreads in a block: `lanes` of them,
// next to each other, have one row.
struct RowThreads {
  int lanes;
  int64_t count;  // rows
  Divisor rows_of_head, heads_of_example;

  RowThreads(int64_t examples, int64_t heads, int64_t rows, int64_t packs)
      : lanes(power_for(packs, kWarp)),
        count(examples * heads * rows),
        rows_of_head(rows, count + kRowThreads),
        heads_of_example(heads, examples * heads + kRowThreads) {}

  unsigned blocks() const {
    return static_cast<unsigned>(parts_of(count * lanes, kRowThreads));
  }
};

// The row of this thread.
struct Row {
  int64_t index, example, head, row;
  int lane;

  __device__ explicit Row(const RowThreads& threads) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
    index = over_power(thread, threads.lanes);
    lane = threadIdx.x % threads.lanes;
    const int64_t heads = threads.rows_of_head.quotient(index);
    row = threads.rows_of_head.remainder(index);
    example = threads.heads_of_example.quotient(heads);
    head = threads.heads_of_example.remainder(heads);
  }

  template <class Number>
  __device__ const Number* of(const Rows<const void>& rows) const {
    return row_of<Number>(rows, example, head, row);
  }
};

}  // namespace
}  // namespace longspan::cuda
