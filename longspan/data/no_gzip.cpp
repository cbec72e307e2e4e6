#include "longspan/base/error.h"
#include "longspan/data/packed_file.h"

namespace longspan {

std::string unpack_gzip(std::string_view, const std::string& name) {
  fail(name,
       ": this build has no zlib to unpack it; unpack it by `gzip -dk`, or build ",
       "with zlib");
}

}  // namespace longspan
