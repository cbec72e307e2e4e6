// Which instance of a kernel of attention a call gets, and its launch.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "longspan/kernels/cuda/band.cuh"

namespace longspan::cuda {
namespace {

enum class Kind {
  kPlain,     // layouts, rows by place and several sources only
  kFeatured,  // everything else too
  kBanded,    // and biases by distance as band.cuh has them
  kAny        // also rows at any address, and widths beyond that of a tile
};

template <Kind kKind>
constexpr bool kHasFeatures = kKind != Kind::kPlain;
template <Kind kKind>
constexpr bool kHasBand = kKind == Kind::kBanded || kKind == Kind::kAny;
// Whether tiles are brought while the one before is worked on.
template <Kind kKind>
constexpr bool kBringsAhead = kKind != Kind::kAny;
template <Kind kKind>
constexpr int kStages = kBringsAhead<kKind> ? 2 : 1;

constexpr int64_t chunks_of(int64_t width, int64_t chunk) {
  return width <= chunk ? 1 : (width + chunk - 1) / chunk;
}

inline int64_t widest(const Attention& given) {
  return given.width > given.value_width ? given.width : given.value_width;
}

inline bool has_pair_bias(const Attention& given) {
  for (int i = 0; i < given.source_count; ++i) {
    const Bias& bias = given.sources[i].bias;
    if (bias.table.data || bias.vectors.data || bias.dense.data) return true;
  }
  return false;
}

inline bool has_bias_by_distance(const Attention& given) {
  for (int i = 0; i < given.source_count; ++i) {
    const Bias& bias = given.sources[i].bias;
    if ((bias.table.data || bias.vectors.data) && !bias.labels.data &&
        bias.grid_width == 0)
      return true;
  }
  return false;
}

inline bool needs_features(const Attention& given) {
  if (given.buckets.data || given.dropout.limit > 0 || !(given.scale > 0)) return true;
  for (int i = 0; i < given.source_count; ++i) {
    const Source& source = given.sources[i];
    if (source.from.data || source.to.data || source.buckets.data ||
        source.bias.column.data || source.bias.slopes.data)
      return true;
  }
  return has_pair_bias(given);
}

inline int64_t size_of(Type type) {
  return type == Type::kDouble ? 8 : type == Type::kFloat ? 4 : 2;
}

// Whether every row begins at a multiple of 16 bytes.
inline bool in_chunks(const Rows<const void>& rows, Type type) {
  const int64_t size = size_of(type);
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 &&
         rows.example * size % 16 == 0 && rows.head * size % 16 == 0 &&
         rows.row * size % 16 == 0;
}

inline bool in_chunks(const Attention& given) {
  bool all = in_chunks(given.q, given.type);
  for (int i = 0; i < given.source_count; ++i)
    all = all && in_chunks(given.sources[i].k, given.type) &&
          in_chunks(given.sources[i].v, given.type);
  return all;
}

// Kernels count places and strides of rows by 32 bits.
inline bool is_small(const Attention& given) {
  const auto small = [](int64_t number) { return number <= INT32_MAX - kTile; };
  bool all = small(given.places) && small(given.q.row) && small(given.width) &&
             small(given.value_width) && given.source_count > 0 &&
             given.source_count <= kMostSources;
  for (int i = 0; i < given.source_count; ++i) {
    const Source& source = given.sources[i];
    all = all && small(source.places) && small(source.k.row) && small(source.v.row);
  }
  return all;
}

constexpr int kDoesNotFit = -1;

// Launches kKernel(arguments..) with `bytes` of shared memory beside its own;
// kDoesNotFit where the device has less.
template <auto kKernel, class... Arguments>
int launch_blocks(int64_t blocks, int64_t chunks, int bytes, Stream stream,
                  const Arguments&... arguments) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX || chunks > 65535) return cudaErrorInvalidValue;
  static const int own_bytes = [] {
    cudaFuncAttributes attributes;
    const auto error = cudaFuncGetAttributes(&attributes, kKernel);
    return error == cudaSuccess ? static_cast<int>(attributes.sharedSizeBytes) : 0;
  }();
  int device = 0, most = 0;
  if (const auto error = cudaGetDevice(&device)) return error;
  if (const auto error = cudaDeviceGetAttribute(
          &most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
    return error;
  if (own_bytes + bytes > most) return kDoesNotFit;
  // All that it may have, not what this call needs: other threads may be calling too.
  if (const auto error = cudaFuncSetAttribute(
          kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - own_bytes))
    return error;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunks));
  kKernel<<<grid, kThreads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

template <class Stored, class Launch>
int choose_on_tensor_cores(const Attention& given, bool all_in_chunks,
                           const Launch& launch) {
  int error = kDoesNotFit;
  if (all_in_chunks && widest(given) <= 128) {
    const bool narrow = widest(given) <= 64;
    if (has_bias_by_distance(given))
      error = narrow ? launch.template operator()<Stored, 64, Kind::kBanded>()
                     : launch.template operator()<Stored, 128, Kind::kBanded>();
    else if (needs_features(given))
      error = narrow ? launch.template operator()<Stored, 64, Kind::kFeatured>()
                     : launch.template operator()<Stored, 128, Kind::kFeatured>();
    else
      error = narrow ? launch.template operator()<Stored, 64, Kind::kPlain>()
                     : launch.template operator()<Stored, 128, Kind::kPlain>();
  }
  if (error != kDoesNotFit) return error;
  return launch.template operator()<Stored, 128, Kind::kAny>();
}

// launch.operator()<Stored, width of tiles, kind>() for what is given.
template <class Launch>
int choose_instance(const Attention& given, bool all_in_chunks, const Launch& launch) {
  if (!is_small(given)) return cudaErrorInvalidValue;
  int error = cudaErrorInvalidValue;
  switch (given.type) {
    case Type::kDouble:
      error = launch.template operator()<double, 32, Kind::kAny>();
      break;
    case Type::kFloat:
      error = widest(given) <= 64
                  ? launch.template operator()<float, 64, Kind::kAny>()
                  : launch.template operator()<float, 128, Kind::kAny>();
      break;
    case Type::kHalf:
      error = choose_on_tensor_cores<__half>(given, all_in_chunks, launch);
      break;
    case Type::kBFloat16:
      error = choose_on_tensor_cores<__nv_bfloat16>(given, all_in_chunks, launch);
      break;
  }
  return error == kDoesNotFit ? cudaErrorInvalidConfiguration : error;
}

// What a block of threads works on.
struct Work {
  int32_t piece_number, head_number, example, head;
  Piece piece;

  __device__ Work(const Pieces& pieces, const Attention& given) {
    head_number = blockIdx.x / pieces.count;
    piece_number = blockIdx.x - head_number * pieces.count;
    const auto heads = static_cast<int32_t>(given.heads);
    example = head_number / heads;
    head = head_number - example * heads;
    piece = pieces.pieces[piece_number];
  }
};

// Room for numbers of pairs, [64, kPairStride], after the tiles in shared memory.
template <class Stored>
int room_bytes(const Attention& given) {
  return !kOnTensorCores<Stored> || has_pair_bias(given)
             ? kTile * kPairStride * int{sizeof(NumberOf<Stored>)}
             : 0;
}

// launch(with a band, its bytes after the room); without where there is nothing to
// gain, or too little shared memory.
template <class Stored, int kWidth, Kind kKind, class Launch>
int launch_with_band(const Attention& given, const Launch& launch) {
  using ABand = Band<Stored, kWidth>;
  bool has_vectors = false;
  for (int i = 0; i < given.source_count; ++i)
    has_vectors = has_vectors || given.sources[i].bias.vectors.data;
  int error = kDoesNotFit;
  if (kHasBand<kKind> && has_bias_by_distance(given) && given.width <= kWidth)
    error = launch(true, has_vectors ? ABand::kBytes : ABand::kTableBytes);
  return error == kDoesNotFit ? launch(false, 0) : error;
}

}  // namespace
}  // namespace longspan::cuda
