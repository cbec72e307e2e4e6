// Block-sparse softmax attention, the primitive that most mechanisms are layouts of.
//
// A query sees a key of a source when
//   the layout shows it,
//   from <= position of the query < to, or the contrary where `outside`, and
//   their buckets are equal;
// and then, over all sources in one softmax,
//   score = scale * q.k + bias,  lse = log sum exp(score),  out = sum exp(score - lse)
//   v.
// Each key may be in a row once. Scores, sums and lse are computed in float (double for
// double inputs) whatever the inputs are.

#pragma once

#include <optional>
#include <vector>

#include <torch/types.h>

#include "longspan/base/random.h"
#include "longspan/kernels/layout.h"
#include "longspan/kernels/lse_merge.h"

namespace longspan {

// Added to the scores of one source. Any combination; every tensor has a gradient. A
// bias of minus infinity hides the pair.
//
// `table`, `vectors` and `labels` are about the entry a pair uses: its label, or the
// distance p_q - p_k of its positions, entry 0 being the distance `first`; distances
// beyond the table use its ends. On a grid `width` wide, position = row * width +
// column and the table has two axes, for the distances of rows and of columns.
struct Bias {
  torch::Tensor column = {};  // [B|1, H|1, M]
  torch::Tensor slopes = {};  // [H|1]: -slope * |p_q - p_k| (ALiBi)
  torch::Tensor table = {};   // [H|1, R] or on a grid [H|1, R, C]
  // [H|1, R, d] or on a grid [H|1, R, C, d]: scale * (q + offset) . vector
  // (Transformer-XL)
  torch::Tensor vectors = {};
  torch::Tensor offset = {};  // [H|1, d], for `vectors`
  torch::Tensor labels = {};  // [B|1, H|1, N, M] integer, for sources of few keys (ETC)
  torch::Tensor dense = {};   // [B|1, H|1, N, M]
  int64_t first = 0;
  int64_t width = 0;  // 0: positions are on a line
  int64_t first_column = 0;

  bool defined() const {
    return column.defined() || slopes.defined() || table.defined() ||
           vectors.defined() || dense.defined();
  }
};

// Integer tensors over rows are [N] or [B|1, H|1, N] (M for keys), int32 or int64.
struct Queries {
  torch::Tensor q = {};          // [B, H, N, d]
  torch::Tensor positions = {};  // undefined: first, first + 1, ..
  int64_t first = 0;
  torch::Tensor buckets = {};  // undefined: 0
  // [S] or [B|1, H|1, S]: place s of the layout is row rows[s] of q; -1 is an empty
  // place. A row may have one place at most; a row with none gives out 0. Undefined:
  // places are rows. Results come in the order of q.
  torch::Tensor rows = {};
};

struct Source {
  torch::Tensor k = {};  // [B|1, Hk, M, d]
  torch::Tensor v = {};  // [B|1, Hk, M, dv]
  // Places by queries and by keys; undefined: every query sees every key.
  std::optional<Layout> layout = {};
  torch::Tensor positions = {};      // undefined: 0, 1, ..; only biases ask for them
  torch::Tensor from = {}, to = {};  // undefined: no lower, no upper end
  bool outside = false;
  torch::Tensor buckets = {};  // undefined: 0
  torch::Tensor rows = {};  // as of queries, but a row of k and v may have many places
  bool rows_once = false;   // a promise that none has: its gradients need no sums
  Bias bias = {};
};

// Weights are dropped after the softmax with `probability` and the others scaled by
// 1 / (1 - probability); the choice is a function of (key, example, head, row of q,
// number of the source, row of k). lse is that of the undropped scores.
struct Dropout {
  double probability = 0;
  Key key;
};

struct BlockAttention {
  std::optional<double> scale = {};  // d^-1/2
  Dropout dropout = {};
};

// Whether block_attention() has fused kernels there. They need O(N + M) memory beside
// inputs, results and the lists of tiles; without them it runs as the reference does,
// in O(N*M).
bool has_fused_attention(torch::Device device);

// Whether on CUDA calls that are plainly dense or causal may go to LibTorch's own
// attention, where it has one and there is no better kernel for the card: so from the
// start, unless the environment has LONGSPAN_TORCH_ATTENTION=0.
void use_torch_attention(bool use);
bool uses_torch_attention();

// On CUDA there may be 8 sources at most, and integers that lie there are checked late:
// bad ones stop the program.
//
// Differentiable in q, in k, v and biases of every source, where fused once; out and
// lse both have gradients.
Attended block_attention(const Queries& queries, const std::vector<Source>& sources,
                         const BlockAttention& options = {});

// The same in plain tensor operations, O(N*M): what the fused path must equal.
Attended block_attention_reference(const Queries& queries,
                                   const std::vector<Source>& sources,
                                   const BlockAttention& options = {});

// The biases of a source as scores [B|1, H, N, M], in plain tensor operations.
torch::Tensor bias_scores(const Bias& bias, const torch::Tensor& q, double scale,
                          const torch::Tensor& query_positions,
                          const torch::Tensor& key_positions);

}  // namespace longspan
