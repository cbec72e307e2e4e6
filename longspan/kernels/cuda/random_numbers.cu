#include "longspan/kernels/cuda/random_numbers.h"

#include "longspan/kernels/cuda/philox.cuh"
#include "longspan/kernels/cuda/rows.cuh"

namespace longspan::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

struct alignas(16) TwoWords {
  int64_t at[2];
};

__device__ void store_four(const uint32_t (&words)[4], int64_t* to) {
  auto* const pairs = reinterpret_cast<TwoWords*>(to);
  pairs[0] = {{words[0], words[1]}};
  pairs[1] = {{words[2], words[3]}};
}

__global__ void __launch_bounds__(kThreads)
    philox_at(uint64_t key, const __grid_constant__ PhiloxCounters places,
              int64_t* to) {
  const int64_t index = thread_index();
  if (index >= places.count) return;
  int64_t rest = index, offsets[4] = {};
  for (int axis = places.axes - 1; axis >= 0; --axis) {
    const int64_t size = places.sizes[axis];
    int64_t along = 0;
    if (size <= 1) continue;
    if (rest <= 0xffffffff && size <= 0xffffffff) {  // much quicker
      along = static_cast<uint32_t>(rest) % static_cast<uint32_t>(size);
      rest = static_cast<uint32_t>(rest) / static_cast<uint32_t>(size);
    } else {
      along = rest % size;
      rest /= size;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) offsets[i] += along * places.strides[i][axis];
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = static_cast<uint32_t>(places.counters[i][offsets[i]]);
  philox(key, words);
  store_four(words, to + 4 * index);
}

__global__ void __launch_bounds__(kThreads)
    fill_words(uint64_t key, int64_t* to, int64_t count) {
  const int64_t place = thread_index();
  if (4 * place >= count) return;
  uint32_t words[4] = {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32),
                       0, 0};
  philox(key, words);
  if (4 * place + 4 <= count) return store_four(words, to + 4 * place);
  for (int i = 0; 4 * place + i < count; ++i) to[4 * place + i] = words[i];
}

}  // namespace

int philox_words(uint64_t key, const PhiloxCounters& places, int64_t* to,
                 Stream stream) {
  if (places.count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(parts_of(places.count, kThreads));
  philox_at<<<blocks, kThreads, 0, stream>>>(key, places, to);
  return cudaGetLastError();
}

int random_words(uint64_t key, int64_t* to, int64_t count, Stream stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(parts_of(count, 4 * kThreads));
  fill_words<<<blocks, kThreads, 0, stream>>>(key, to, count);
  return cudaGetLastError();
}

}  // namespace longspan::cuda
