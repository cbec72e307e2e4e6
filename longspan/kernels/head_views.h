// A call of block_attention() as the CPU kernels take it: one head at a time.

#pragma once

#include <vector>

#include "longspan/kernels/attention_call.h"
#include "longspan/kernels/cpu/block_attention.h"

namespace longspan {

// Rows of numbers [B|1, heads|1, n, width] whose last axis is dense.
template <class Number>
class HeadRows {
 public:
  HeadRows() = default;
  // Heads of the tensor serve `heads` heads in equal groups.
  HeadRows(const torch::Tensor& tensor, int64_t heads);

  Number* at(int64_t example, int64_t head) const {
    return data_ ? data_ + example * example_stride_ + head / group_ * head_stride_
                 : nullptr;
  }
  int64_t stride() const { return row_stride_; }

 private:
  torch::Tensor tensor_;
  Number* data_ = nullptr;
  int64_t example_stride_ = 0, head_stride_ = 0, row_stride_ = 0, group_ = 1;
};

// `Number` computes, `Stored` is how q, k and v lie in memory.
template <class Number, class Stored = Number>
class HeadViews {
 public:
  // Converts what is not yet as the kernels take it.
  HeadViews(const AttentionCall& call, const AttentionSizes& sizes);

  cpu::HeadQueries<Stored> queries(int64_t example, int64_t head) const;
  cpu::HeadSource<Number, Stored> source(int64_t number, int64_t example,
                                         int64_t head) const;
  cpu::HeadDropout dropout(int64_t example, int64_t head) const;

 private:
  using Ints = HeadRows<int32_t>;

  struct SourceRows {
    HeadRows<Stored> k, v;
    Ints rows, positions, from, to, buckets, labels;
    HeadRows<Number> column, slopes, table, vectors, offset, dense;
  };

  const AttentionCall& call_;
  int64_t heads_;
  HeadRows<Stored> q_;
  Ints rows_, positions_, buckets_;
  std::vector<SourceRows> sources_;
};

// The tiles of keys first .. end - 1 of a source that a tile of queries visits,
// appended.
void append_visits(const Source& source, int64_t example, int64_t head,
                   int64_t query_tile, int64_t first, int64_t end,
                   std::vector<cpu::Visit>& visits);

// The tiles of all keys of a source.
int64_t key_tiles(const Source& source);

int64_t key_places(const Source& source);

}  // namespace longspan
