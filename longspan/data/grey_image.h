// Grey pictures in PNG files.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

struct GreyImage {
  int64_t rows = 0, columns = 0;
  std::vector<uint8_t> pixels = {};  // row by row, 0 black .. 255 white
};

// Colours become grey as (299 r + 587 g + 114 b + 500) / 1000.
constexpr uint8_t grey_of(int red, int green, int blue) {
  return static_cast<uint8_t>((299 * red + 587 * green + 114 * blue + 500) / 1000);
}

// What a PNG file shows, and the bytes of one; `name` is for messages. A build without
// libpng refuses both.
GreyImage read_png(std::string_view bytes, const std::string& name);
std::string png_of(const GreyImage& image);

}  // namespace longspan
