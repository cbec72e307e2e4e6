// How rows in the memory of kernels are padded.

#pragma once

#include <cstdint>

namespace longspan::cpu {

// To a multiple of so many numbers: whole vectors of any width.
inline constexpr int64_t kPadding = 16;

}  // namespace longspan::cpu
