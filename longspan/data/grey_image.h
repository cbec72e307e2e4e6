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

// The grey of the Long Range Arena, which is TensorFlow's: (0.2989 r + 0.5870 g +
// 0.1140 b) * 255.5 / 255, cut.
constexpr uint8_t grey_of(int64_t red, int64_t green, int64_t blue) {
  return static_cast<uint8_t>((2989 * red + 5870 * green + 1140 * blue) * 511 /
                              5'100'000);
}

// What a PNG file shows, and the bytes of one; `name` is for messages. A build without
// libpng refuses both.
GreyImage read_png(std::string_view bytes, const std::string& name);
std::string png_of(const GreyImage& image);

}  // namespace longspan
