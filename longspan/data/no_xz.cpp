#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"

namespace longspan {

std::unique_ptr<ByteSource> open_xz(const std::string& path) {
  fail("cannot read ", path, ": this build has no liblzma; unpack it by xz -d");
}

}  // namespace longspan
