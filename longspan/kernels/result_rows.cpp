#include "longspan/kernels/result_rows.h"

#include <utility>

namespace longspan {
namespace {

thread_local bool head_by_head = false;

}  // namespace

HeadByHead::HeadByHead() : before_(std::exchange(head_by_head, true)) {}
HeadByHead::~HeadByHead() { head_by_head = before_; }

torch::Tensor result_rows(int64_t examples, int64_t heads, int64_t rows,
                          int64_t columns, const torch::TensorOptions& options) {
  if (head_by_head) return torch::empty({examples, heads, rows, columns}, options);
  return torch::empty({examples, rows, heads, columns}, options).transpose(1, 2);
}

}  // namespace longspan
