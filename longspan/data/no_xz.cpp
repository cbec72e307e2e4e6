#include "longspan/base/error.h"
#include "longspan/data/packed_file.h"

namespace longspan {

std::string unpack_xz(std::string_view, const std::string& name) {
  fail(name, ": this build has no liblzma to unpack it; unpack it by `xz -dk`, or ",
       "build with liblzma");
}

}  // namespace longspan
