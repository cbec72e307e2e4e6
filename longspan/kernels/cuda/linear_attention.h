// What the CUDA kernels of linear attention are given: pointers and sizes; see
// ../linear_attention.h. Tokens come in chunks, whose pairs are multiplied out, while
// the rest comes in sums. All tensors are dense unless they are Rows.

#pragma once

#include <cstdint>

#include "longspan/kernels/cuda/attention.h"

namespace longspan::cuda {

constexpr int kLinearChunk = 64;  // tokens

// All launch kernels on `stream` and return a cudaError_t. `type` is kFloat or kDouble.

// x[i] += x[i - 1] along each of `rows` rows.
int running_sums(double* x, int64_t rows, int64_t length, Stream stream);

// Turns what each chunk adds to a state into the states before the chunks; backwards:
// what comes before is what comes after. Sums are times exp(-peaks), for whole peaks,
// minus infinity for sums of 0.
struct LinearScan {
  Type type = Type::kFloat;
  bool backwards = false;
  int64_t heads = 0, chunks = 0, features = 0, columns = 0;
  void* sums = nullptr;               // [heads, chunks, features, columns], in place
  bool has_peaks = false;             // else they are 0
  const void* peaks = nullptr;        // [heads, chunks, features]
  void* peaks_before = nullptr;       // [heads, chunks, features]
  const double* log_decay = nullptr;  // [heads, chunks]: of a chunk; null for 0
  const void* first = nullptr;        // [heads, features, columns]; null for 0
  const void* first_peaks = nullptr;  // [heads, features]
  void* last = nullptr;               // the state after all chunks; null: not wanted
  void* last_peaks = nullptr;
};
int linear_scan(const LinearScan& task, Stream stream);

// pairs[t][j] times exp(until[t] - until[j]), and 0 for keys j later than t.
struct LinearPairs {
  Type type = Type::kFloat;
  int64_t chunks = 0;
  void* pairs = nullptr;          // [chunks, 64, 64], in place
  const double* until = nullptr;  // [chunks, 64]; null for 0
};
int fade_pairs(const LinearPairs& task, Stream stream);

// pairs[t][j] = weights[j] * sum of exp(q[t] + k[j] + until[t] - until[j] - scale[t]),
// 0 for keys later than t; feature by feature, for a product of features would not be
// in range for every pair.
struct LinearLogPairs {
  Type type = Type::kFloat;
  int64_t chunks = 0, features = 0;
  const void* q = nullptr;        // [chunks, 64, features]: logs
  const void* k = nullptr;        // [chunks, 64, features]
  const double* until = nullptr;  // [chunks, 64]; null for 0
  const void* weights = nullptr;  // [chunks, 64]; null for 1
  // [chunks, 64]: the whole numbers nearest to the logs of the weights; null for 0.
  const void* log_weights = nullptr;
  // [chunks, 64]: the log of the largest other term of a row. Null: `scale` is given,
  // else it is set, near the log of the largest term; 0 where there is none.
  const void* largest = nullptr;
  void* scale = nullptr;  // [chunks, 64]: whole numbers
  void* pairs = nullptr;  // [chunks, 64, 64]
};
int log_pairs(const LinearLogPairs& task, Stream stream);

// Adds to the slopes of the logs what the pairs give, from the slopes of the weights of
// keys at queries.
struct LinearLogPairSlopes {
  LinearLogPairs given = {};   // without pairs
  const void* dots = nullptr;  // [chunks, 64, 64]
  void* q_slope = nullptr;     // [chunks, 64, features]
  void* k_slope = nullptr;     // [chunks, 64, features], but for the factor `weights`
};
int log_pair_slopes(const LinearLogPairSlopes& task, Stream stream);

// How out comes from num and den: longspan::Normaliser in its order.
enum class LinearDivisor { kNone, kPlus, kAtLeast, kIfPositive };

// bfloat16 on tensor cores: for every query i and its keys j, causally those up to i,
//   out_i = sum_j (q_i . k_j) v_j, divided as above, or
//   out_i = sum_j (q_i . k_j + a_i b_j) v_j.
// Widths are multiples of 8, at most 128; addresses and strides multiples of 16 bytes.
// Tokens come in segments. A state is [features, values] sums of k_j v_j^T, then the
// [features] sums of k_j, of the second form the [values] sums of b_j v_j.
struct LinearPass {
  int64_t examples = 0, heads = 0, queries = 0, keys = 0;
  int32_t features = 0, values = 0;
  bool causal = false;
  bool divides = true;  // the first form
  LinearDivisor divisor = LinearDivisor::kNone;
  double epsilon = 0;
  Rows<const void> q = {}, k = {}, v = {};
  bool has_pair = false;             // whether there are a and b
  Rows<const float> a = {}, b = {};  // one number a row; null: all are 1
  int64_t segment = 0;               // tokens, a multiple of 64
  float* states = nullptr;           // [heads, segments of keys, state]
  float* last = nullptr;             // [heads, state]
  Rows<void> out = {};
  float* lse = nullptr;  // [examples, heads, queries]; or null
  float* den = nullptr;  // [examples, heads, queries]; or null
};

// Whether the device has enough shared memory for these widths.
bool linear_pass_fits(int device, int features, int values);

// What each segment of keys adds to the state; causal: all but the last.
int linear_sums(const LinearPass& task, Stream stream);

// The results, causally from the states before each segment, and sets `last` if it is
// not null; else from `last`.
int linear_rows(const LinearPass& task, Stream stream);

// Slopes of num and den of bfloat16 rows, from those of out and lse.
struct LinearSlopeRows {
  int64_t rows = 0;
  int32_t values = 0;
  LinearDivisor divisor = LinearDivisor::kNone;
  double epsilon = 0;
  const void* out = nullptr;         // [rows, values]
  const void* out_slope = nullptr;   // [rows, values]
  const float* den = nullptr;        // [rows]
  const float* lse_slope = nullptr;  // [rows]; null for 0
  void* num_slope = nullptr;         // [rows, values]
  float* den_slope = nullptr;        // [rows]
};
int linear_slope_rows(const LinearSlopeRows& task, Stream stream);

}  // namespace longspan::cuda
