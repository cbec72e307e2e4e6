// What attention weighs how much, for people to look at.

#pragma once

#include <functional>

#include "longspan/attention/mechanism.h"

namespace longspan {

// While one lives, Attention::forward() of the calling thread tells it what it was
// given. One inside another Attention does not, and one watch is told at a time.
class AttentionWatch {
 public:
  struct Seen {
    Attention& attention;
    torch::Tensor q, k, v, out;
    Pass pass;  // as it was before
  };
  using Tell = std::function<void(const Seen&)>;

  explicit AttentionWatch(Tell tell);
  ~AttentionWatch();
  AttentionWatch(const AttentionWatch&) = delete;
  AttentionWatch& operator=(const AttentionWatch&) = delete;

  // Runs `work`, which is what `attention` does with the rest, under the watch there
  // may be.
  static torch::Tensor watched(Attention& attention, const torch::Tensor& q,
                               const torch::Tensor& k, const torch::Tensor& v,
                               Pass& pass, const std::function<torch::Tensor()>& work);

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
