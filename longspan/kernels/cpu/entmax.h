// What the vector code sees of entmax attention: some queries of one head of one
// example, and all keys they see. No torch, no containers: see vec.h.

#pragma once

#include <cstdint>

#include "longspan/kernels/cpu/block_attention.h"

namespace longspan::cpu {

// A task with a null scratch is asked only for its bytes.
template <class Number>
struct EntmaxTask {
  int64_t width = 0, value_width = 0;
  double scale = 0;
  double alpha = 2;  // above 1, at most 2
  HeadQueries<Number> queries = {};
  int64_t tile = 0;               // of queries
  int64_t first = 0, lanes = 64;  // those of its queries that are asked for
  // Its rows of k and v are as long as their width padded, zeros at the end.
  HeadSource<Number> source = {};
  const Visit* visits = nullptr;
  int64_t visit_count = 0;
  int64_t most_keys = 0;  // 64 for each visit and once more, at least
  HeadDropout dropout = {};
  // [queries, 2]: the largest score, in powers of 2, and how far below it, in units of
  // 1 / (alpha - 1), a score has weight 0. Minus infinity and 0 where no key is seen.
  Number* levels = nullptr;
  Number* out = nullptr;  // [queries, value width]; of entmax() alone
  int64_t out_stride = 0;
  void* scratch = nullptr;  // of entmax_bytes(), at a multiple of 64
};

template <class Number>
struct EntmaxGradientTask {
  EntmaxTask<Number> forward = {};
  const Number* out_slope = nullptr;  // [queries, value width]
  int64_t out_slope_stride = 0;
  Number* q = nullptr;  // [queries, width]: set
  int64_t q_stride = 0;
  Number* k = nullptr;      // [keys, padded width]: added to, still without the scale
  Number* v = nullptr;      // [keys, padded value width]: added to
  double* alpha = nullptr;  // added to; null: not wanted
  // [64, keys]: of the scores of the tile, set where they are not 0; null: not wanted.
  Number* scores = nullptr;
  int64_t scores_stride = 0;
};

namespace portable {
int64_t entmax_bytes(const EntmaxTask<float>& task);
int64_t entmax_bytes(const EntmaxTask<double>& task);
void entmax(const EntmaxTask<float>& task);
void entmax(const EntmaxTask<double>& task);
void entmax_gradient(const EntmaxGradientTask<float>& task);
void entmax_gradient(const EntmaxGradientTask<double>& task);
}  // namespace portable
namespace avx2 {
void entmax(const EntmaxTask<float>& task);
void entmax(const EntmaxTask<double>& task);
void entmax_gradient(const EntmaxGradientTask<float>& task);
void entmax_gradient(const EntmaxGradientTask<double>& task);
}  // namespace avx2
namespace avx512 {
void entmax(const EntmaxTask<float>& task);
void entmax(const EntmaxTask<double>& task);
void entmax_gradient(const EntmaxGradientTask<float>& task);
void entmax_gradient(const EntmaxGradientTask<double>& task);
}  // namespace avx512

}  // namespace longspan::cpu
