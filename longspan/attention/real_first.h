// Padding moved behind the real tokens, for mechanisms in which a token's place
// matters: then it makes no difference where the padding stood.

#pragma once

#include <torch/types.h>

namespace longspan {

class RealFirst {
 public:
  // real: [B, n] bool
  explicit RealFirst(const torch::Tensor& real) : padding_(real.logical_not()) {
    const torch::Tensor count = real.sum(1, /*keepdim=*/true);  // [B, 1]
    place_ = torch::where(real, real.cumsum(1), count + padding_.cumsum(1)) - 1;
    real_ = torch::arange(real.size(1), count.options()) < count;
  }

  // [B, n]: where each token goes; for a real one how many real ones are before it.
  const torch::Tensor& place() const { return place_; }
  // [B, n] bool: the tokens in their new order that are real.
  const torch::Tensor& real() const { return real_; }

  // x [B, h, n, w]: the real tokens in their order, then zeros.
  torch::Tensor moved(const torch::Tensor& x) const {
    return rows_at(cleared(x), place_.argsort(int64_t{1}));
  }

  // The same tokens where they came from.
  torch::Tensor moved_back(const torch::Tensor& x) const { return rows_at(x, place_); }

  // x [B, h, n, w] with zeros for padding.
  torch::Tensor cleared(const torch::Tensor& x) const {
    return x.masked_fill(padding_.unsqueeze(1).unsqueeze(3), 0);
  }

 private:
  // Rows `index` [B, n] of x. As gradients they are added in a fixed order on both
  // devices.
  static torch::Tensor rows_at(const torch::Tensor& x, const torch::Tensor& index) {
    if (!x.is_cuda())
      return x.gather(2, index.unsqueeze(1).unsqueeze(3).expand(x.sizes()));
    const torch::Tensor example =
        torch::arange(x.size(0), index.options()).unsqueeze(1);
    return x.transpose(1, 2).index({example, index}).transpose(1, 2);
  }

  torch::Tensor padding_, place_, real_;
};

}  // namespace longspan
