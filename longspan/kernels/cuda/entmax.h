// Rows of alpha-entmax weights; see ../entmax.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

struct EntmaxRows {
  Type type = Type::kFloat;  // of all numbers: float or double
  int64_t heads = 0, rows_of_head = 0;
  int64_t rows = 0, columns = 0;  // rows: of all examples, heads and queries
  const void* alpha = nullptr;    // [heads]
  const void* scores = nullptr;   // [rows, columns], minus infinity: no key
  void* weights = nullptr;        // [rows, columns]; may be where the scores are
};

struct EntmaxRowsGradient {
  Type type = Type::kFloat;
  int64_t heads = 0, rows_of_head = 0;
  int64_t rows = 0, columns = 0;
  const void* alpha = nullptr;
  const void* weights = nullptr;   // [rows, columns]
  const void* slopes = nullptr;    // of the weights
  void* score_slopes = nullptr;    // may be where `slopes` are
  double* alpha_slopes = nullptr;  // [rows]; null: not wanted
};

// Both launch a kernel on `stream` and return a cudaError_t. There must be rows and
// columns.
int entmax_rows(const EntmaxRows& task, Stream stream);
int entmax_rows_gradient(const EntmaxRowsGradient& task, Stream stream);

}  // namespace longspan::cuda
