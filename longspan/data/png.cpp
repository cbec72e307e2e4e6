#include <png.h>

#include "longspan/base/error.h"
#include "longspan/data/grey_image.h"

namespace longspan {

GreyImage read_png(std::string_view bytes, const std::string& name) {
  png_image file = {};
  file.version = PNG_IMAGE_VERSION;
  const auto check = [&](int fine) {
    const std::string reason = file.message;
    if (!fine) png_image_free(&file);
    require(fine, name, " is not a whole PNG file: ", reason);
  };
  check(png_image_begin_read_from_memory(&file, bytes.data(), bytes.size()));
  const bool colour = file.format & PNG_FORMAT_FLAG_COLOR;
  file.format = colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  const png_color black = {};  // behind what is transparent
  std::vector<uint8_t> values(PNG_IMAGE_SIZE(file));
  check(png_image_finish_read(&file, &black, values.data(), /*row_stride=*/0, nullptr));
  GreyImage image{.rows = file.height, .columns = file.width};
  if (!colour) {
    image.pixels = std::move(values);
    return image;
  }
  for (size_t at = 0; at + 2 < values.size(); at += 3)
    image.pixels.push_back(grey_of(values[at], values[at + 1], values[at + 2]));
  return image;
}

std::string png_of(const GreyImage& image) {
  png_image file = {};
  file.version = PNG_IMAGE_VERSION;
  file.width = static_cast<png_uint_32>(image.columns);
  file.height = static_cast<png_uint_32>(image.rows);
  file.format = PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(file);
  std::string bytes(size, '\0');
  require(png_image_write_to_memory(&file, bytes.data(), &size, /*convert_to_8bit=*/0,
                                    image.pixels.data(), /*row_stride=*/0, nullptr),
          "cannot make a PNG file of ", image.rows, " x ", image.columns,
          " pixels: ", std::string(file.message));
  bytes.resize(size);
  return bytes;
}

}  // namespace longspan
