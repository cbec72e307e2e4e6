// Spans that are given as a tensor.

#pragma once

#include <vector>

#include <torch/types.h>

#include "longspan/kernels/layout.h"

namespace longspan::ops {

// Of [.., 2] int32 or int64 on any device, one after the other.
std::vector<Span> spans_of(const torch::Tensor& tensor);

}  // namespace longspan::ops
