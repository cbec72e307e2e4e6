// What attention weighs how much, for people to look at.

#pragma once

#include <functional>

#include "longspan/attention/mechanism.h"

namespace longspan {

// While one lives, what mixes values by heads tells it with what: every Attention, and
// Mixers that do so by themselves. What is inside another that tells does not, and one
// watch is told at a time.
class AttentionWatch {
 public:
  // Values [B, Hk, M, dv] to outputs [B, H, N, dv], by weights that are those of the
  // values that were seen.
  using Mix = std::function<torch::Tensor(const torch::Tensor& v, Pass& pass)>;

  struct Seen {
    const Part& part;
    torch::Tensor v, out;
    Pass pass;  // as it was before
    Mix mix;
  };
  using Tell = std::function<void(const Seen&)>;

  explicit AttentionWatch(Tell tell);
  ~AttentionWatch();
  AttentionWatch(const AttentionWatch&) = delete;
  AttentionWatch& operator=(const AttentionWatch&) = delete;

  // Runs mix(v, pass), which is what `part` does, under the watch there may be.
  static torch::Tensor watched(const Part& part, const torch::Tensor& v, Pass& pass,
                               const Mix& mix);

 private:
  Tell tell_;
  AttentionWatch* before_;
};

// With rows [B, N], a share of each query: how much of each key is in that mixture of
// the queries' outputs, [B, H, M], in the type of v. It is what a gradient of the
// values says, so nothing of size N*M is made for it; and it holds for every mechanism
// whose outputs are weighted sums of values. An Error of one where they are not, as far
// as the outputs that were seen tell.
torch::Tensor key_shares(const AttentionWatch::Seen& seen, const torch::Tensor& rows);

}  // namespace longspan
