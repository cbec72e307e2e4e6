#include "longspan/base/error.h"
#include "longspan/data/grey_image.h"

namespace longspan {

GreyImage read_png(std::string_view, const std::string& name) {
  fail(name, ": this build has no libpng to read it; build with libpng");
}

std::string png_of(const GreyImage&) {
  fail("this build has no libpng to write PNG files; build with libpng");
}

}  // namespace longspan
