// Attention over all keys from attention over parts of them; see ../lse_merge.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

constexpr int kMostParts = 16;

struct MergePart {
  Rows<const void> out = {};  // [B, H, N, width]
  Rows<const void> lse = {};  // [B, H, N] of float, double for double
};

struct Merge {
  Type type = Type::kFloat;  // of the outs
  int64_t examples = 0, heads = 0, rows = 0, width = 0;
  MergePart parts[kMostParts] = {};
  int32_t part_count = 0;
  void* out = nullptr;  // [B, H, N, width], dense
  void* lse = nullptr;  // [B, H, N] of float, double for double, dense
};

struct MergeGradient {
  Type type = Type::kFloat;  // of the outs and their slopes
  int64_t examples = 0, heads = 0, rows = 0, width = 0;
  MergePart parts[kMostParts] = {};
  int32_t part_count = 0;
  Rows<const void> out_slope = {};  // [B, H, N, width]
  Rows<const void> lse_slope = {};  // [B, H, N] of float, double for double
  // Of the parts, dense; null: not wanted.
  struct Slopes {
    void* out = nullptr;
    void* lse = nullptr;
  };
  Slopes slopes[kMostParts] = {};
};

// Both launch a kernel on `stream` and return a cudaError_t.
int merge(const Merge& task, Stream stream);
int merge_gradient(const MergeGradient& task, Stream stream);

}  // namespace longspan::cuda
