// The letters of shapes, used in every comment, and shapes in messages.
//
//   B  examples of a batch             E  width of the model
//   H  heads of the queries            d  width of a query and a key of one head
//   Hk heads of the keys, divides H    dv width of a value of one head
//   N  queries                         M  keys
//
// `[B|1, N]` is a tensor whose first size is B, or 1 for all examples alike. A boolean
// mask is true where a token counts.

#pragma once

#include <sstream>
#include <string>

#include <torch/types.h>

namespace longspan {

// "[2, 4, 9, 8]", or "nothing" for an undefined tensor.
inline std::string shape(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

// Of a type that positions, buckets and rows may have.
inline bool is_integer(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kInt || tensor.scalar_type() == torch::kLong;
}

}  // namespace longspan
