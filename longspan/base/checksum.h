#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace longspan {

// CRC-32C (Castagnoli) of `bytes`; `before` is that of the bytes before them, so that
// long files need not be in memory at once.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

}  // namespace longspan
