// The arguments that the operators of softmax attention share.

#pragma once

#include "longspan/kernels/attention_call.h"
#include "longspan/ops/operator.h"
#include "longspan/ops/visible_keys.h"

namespace longspan::ops {

// In the schema.
inline constexpr char kAttentionSchema[] =
    "bool causal=False, int[]? window=None, "
    "Tensor? spans=None, Tensor? key_from=None, Tensor? key_to=None, "
    "Tensor? query_buckets=None, Tensor? key_buckets=None, "
    "Tensor? query_positions=None, Tensor? key_positions=None, "
    "Tensor? query_rows=None, Tensor? key_rows=None, "
    "Tensor? column_bias=None, Tensor? slopes=None, Tensor? table=None, "
    "int table_first=0, Tensor? vectors=None, Tensor? offset=None, "
    "Tensor? dense_bias=None, float? scale=None";
// After all others, so that those keep their places.
inline constexpr char kLastAttentionSchema[] = "int span_queries=1";

struct AttentionArguments {
  AttentionCall call;  // without its layout
  VisibleKeys visible;

  // Reads those of kAttentionSchema.
  AttentionArguments(const torch::Tensor& q, const torch::Tensor& k,
                     const torch::Tensor& v, Arguments& in);

  // Reads that of kLastAttentionSchema.
  void read_last(Arguments& in);

  // Throws unless everything fits.
  void check();

  // With its layout.
  AttentionCall checked();

  bool is_symbolic();

 private:
  int64_t key_places() const;
};

}  // namespace longspan::ops
