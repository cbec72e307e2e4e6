#pragma once

#include <torch/types.h>

#include "longspan/base/random.h"

namespace longspan {

// x with each element 0 with probability `probability`, and the others divided by
// 1 - probability. Element e of contiguous x is kept where word e of `key` (see
// random_numbers.h) is at least probability * 2^32, on every device, so the gradient
// draws again and no mask is kept. x: float, double, bfloat16 or half.
//
// A key is written out, Key{1}: dropout(x, 0.1, {1}) is LibTorch's function.
torch::Tensor dropout(const torch::Tensor& x, double probability, Key key);

}  // namespace longspan
