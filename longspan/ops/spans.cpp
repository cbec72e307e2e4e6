#include "longspan/ops/spans.h"

namespace longspan::ops {

std::vector<Span> spans_of(const torch::Tensor& tensor) {
  const torch::Tensor ends = tensor.to(torch::kCPU, torch::kLong).contiguous();
  const int64_t* const end = ends.data_ptr<int64_t>();
  std::vector<Span> spans;
  for (int64_t i = 0; i < ends.numel(); i += 2)
    spans.push_back({.from = end[i], .to = end[i + 1]});
  return spans;
}

}  // namespace longspan::ops
