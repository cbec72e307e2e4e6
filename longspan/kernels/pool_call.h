// What pooling is given, as its implementations share it.

#pragma once

#include <cstdint>
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

}  // namespace longspan
