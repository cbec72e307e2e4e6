// An activation of rows plus a bias; see ../activation.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

enum class Curve { kGelu, kGeluTanh, kRelu };

struct Activate {
  Type type = Type::kFloat;
  Curve curve = Curve::kGelu;
  const void* x = nullptr;     // [rows, width]
  const void* bias = nullptr;  // [width], or null for none
  void* y = nullptr;           // [rows, width]
  int64_t rows = 0, width = 0;
};

struct ActivateGradient {
  Type type = Type::kFloat;
  Curve curve = Curve::kGelu;
  const void* y_slope = nullptr;  // [rows, width]
  const void* x = nullptr;        // [rows, width]
  const void* bias = nullptr;     // [width], or null for none
  void* x_slope = nullptr;        // [rows, width]; null: not wanted
  void* bias_slope = nullptr;     // [width]; null: not wanted
  // [activation_chunks(), width], of float, double for double; for bias_slope.
  void* chunks = nullptr;
  int64_t rows = 0, width = 0;
};

int64_t activation_chunks(Type type, int64_t rows, int64_t width);

// Both launch kernels on `stream` and return a cudaError_t. There must be rows.
int activate(const Activate& task, Stream stream);
int activate_gradient(const ActivateGradient& task, Stream stream);

}  // namespace longspan::cuda
