// Layer norm of rows; see ../layer_norm.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

struct LayerNorm {
  Type type = Type::kFloat;      // of x and y
  bool wide = false;             // weight and bias are float; else of `type`
  const void* x = nullptr;       // [rows, width]
  const void* weight = nullptr;  // [width], or null for 1
  const void* bias = nullptr;    // [width], or null for 0
  double epsilon = 0;
  void* y = nullptr;  // [rows, width]
  // Of float, double for double.
  void* mean = nullptr;  // [rows, 2]: in two numbers, because one is too coarse
  void* rstd = nullptr;  // [rows]: 1 / sqrt(variance + epsilon)
  int64_t rows = 0, width = 0;
};

struct LayerNormGradient {
  Type type = Type::kFloat;       // of x and the slopes of x and y
  bool wide = false;              // weight and the slopes of weight and bias are float
  const void* y_slope = nullptr;  // [rows, width]
  const void* x = nullptr;        // [rows, width]
  const void* weight = nullptr;   // [width], or null for 1
  const void* mean = nullptr;     // as above
  const void* rstd = nullptr;
  void* x_slope = nullptr;       // [rows, width]; null: not wanted
  void* weight_slope = nullptr;  // [width]; null: not wanted
  void* bias_slope = nullptr;    // [width]; null: not wanted
  // [2, layer_norm_chunks(), width], of float, double for double; for the last two.
  void* chunks = nullptr;
  int64_t rows = 0, width = 0;
};

int64_t layer_norm_chunks(Type type, int64_t rows, int64_t width);

// Both launch kernels on `stream` and return a cudaError_t. There must be rows.
int layer_norm(const LayerNorm& task, Stream stream);
int layer_norm_gradient(const LayerNormGradient& task, Stream stream);

}  // namespace longspan::cuda
