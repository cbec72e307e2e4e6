#include "longspan/base/checksum.h"

#include <string>

#include <gtest/gtest.h>

namespace longspan::testing {
namespace {

std::string counted(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(i * 167 + i / 256);
  return bytes;
}

// The definition: a division of polynomials, bit by bit.
uint32_t bit_by_bit(std::string_view bytes) {
  uint32_t rest = 0xffffffff;
  for (const char byte : bytes) {
    rest ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? 0x82f63b78 : 0);
  }
  return ~rest;
}

TEST(Checksum, IsTheKnownOne) {
  std::string up, down;
  for (char i = 0; i < 32; ++i) {
    up += i;
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("a"), 0xc1d04330u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c(down), 0x113fdb5cu);
}

TEST(Checksum, FollowsTheDefinitionAtEveryLengthAndPlace) {
  const std::string all = counted(80);
  for (size_t begin = 0; begin < 9; ++begin)
    for (size_t count = 0; begin + count <= all.size(); ++count) {
      const auto bytes = std::string_view(all).substr(begin, count);
      EXPECT_EQ(crc32c(bytes), bit_by_bit(bytes)) << begin << ", " << count;
    }
}

TEST(Checksum, IsTheSameInParts) {
  const std::string all = counted(1000);
  const uint32_t whole = crc32c(all);
  for (size_t first = 0; first <= all.size(); ++first) {
    const auto bytes = std::string_view(all);
    EXPECT_EQ(crc32c(bytes.substr(first), crc32c(bytes.substr(0, first))), whole)
        << first;
  }
  uint32_t so_far = 0;
  for (const char byte : all) so_far = crc32c({&byte, 1}, so_far);
  EXPECT_EQ(so_far, whole);
}

TEST(Checksum, SeesEveryBit) {
  std::string bytes = counted(40);
  const uint32_t right = crc32c(bytes);
  for (auto& byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      byte = static_cast<char>(byte ^ (1 << bit));
      EXPECT_NE(crc32c(bytes), right);
      byte = static_cast<char>(byte ^ (1 << bit));
    }
}

}  // namespace
}  // namespace longspan::testing
