#include "longspan/base/checksum.h"

#include <array>

namespace longspan {
namespace {

constexpr size_t kStride = 8;  // bytes taken at once

// kTables[n][b]: what the byte `b` makes of the checksum, `n` zero bytes later.
constexpr auto kTables = [] {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // lowest bit first
  std::array<std::array<uint32_t, 256>, kStride> tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? kPolynomial : 0);
    tables[0][byte] = rest;
  }
  for (size_t n = 1; n < kStride; ++n)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t last = tables[n - 1][byte];
      tables[n][byte] = (last >> 8) ^ tables[0][last & 0xff];
    }
  return tables;
}();

uint32_t word(const uint8_t* bytes) {
  return bytes[0] | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
         uint32_t{bytes[3]} << 24;
}

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  uint32_t rest = ~before;
  for (; left >= kStride; at += kStride, left -= kStride) {
    const uint32_t low = rest ^ word(at), high = word(at + 4);
    rest = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^
           kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
           kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
           kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; left > 0; ++at, --left) rest = (rest >> 8) ^ kTables[0][(rest ^ *at) & 0xff];
  return ~rest;
}

}  // namespace longspan
