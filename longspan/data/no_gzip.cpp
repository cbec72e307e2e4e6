#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"

namespace longspan {

std::unique_ptr<ByteSource> open_gzip(const std::string& path) {
  fail("cannot read ", path, ": this build has no zlib; unpack it by gzip -d");
}

}  // namespace longspan
