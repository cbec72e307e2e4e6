// What pooling is given, as its implementations share it.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "longspan/kernels/pool.h"

namespace longspan {

// Throw unless everything fits.
void check(const PoolInputs& inputs, const std::vector<Span>& spans, Pooling how);
void check(const PoolInputs& inputs, int64_t segment, Pooling how);

// The length of a segment in tokens, at least 1.
int64_t real_length(int64_t segment, const torch::Tensor& x);

// [G, 2]: from, to; on the CPU.
torch::Tensor as_tensor(const std::vector<Span>& spans);

// Which spans hold tokens of a block of kSpanBlock.
inline constexpr int64_t kSpanBlock = 64;
class SpansOfBlocks {
 public:
  // `spans` as above.
  SpansOfBlocks(const torch::Tensor& spans, int64_t tokens);

  // Ascending, for the block that begins with `token`.
  std::span<const int64_t> of(int64_t token) const {
    const int64_t begin = begins_[token / kSpanBlock];
    const int64_t end = begins_[token / kSpanBlock + 1];
    return {spans_.data() + begin, static_cast<size_t>(end - begin)};
  }

  // Those of block b are spans()[begins()[b]] .. spans()[begins()[b + 1] - 1].
  const std::vector<int64_t>& begins() const { return begins_; }
  const std::vector<int64_t>& spans() const { return spans_; }

 private:
  std::vector<int64_t> begins_, spans_;
};

}  // namespace longspan
