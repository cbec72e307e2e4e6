// How results of attention on CUDA lie in memory; not public.

#pragma once

#include <torch/types.h>

namespace longspan {

// While one lives, what result_rows() makes on this thread lies head by head, for
// callers that would have to copy it otherwise.
class HeadByHead {
 public:
  HeadByHead();
  ~HeadByHead();
  HeadByHead(const HeadByHead&) = delete;
  HeadByHead& operator=(const HeadByHead&) = delete;

 private:
  bool before_;
};

// [B, H, n, c] that lies as [B, n, H, c], as models project into heads and join them;
// or, head by head, as it is.
torch::Tensor result_rows(int64_t examples, int64_t heads, int64_t rows,
                          int64_t columns, const torch::TensorOptions& options);

}  // namespace longspan
