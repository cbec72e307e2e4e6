#include <algorithm>
#include <limits>

#include <lzma.h>

#include "longspan/base/error.h"
#include "longspan/data/packed_file.h"

namespace longspan {

std::string unpack_xz(std::string_view packed, const std::string& name) {
  constexpr uint64_t kAnyMemory = std::numeric_limits<uint64_t>::max();
  constexpr size_t kBlock = size_t{1} << 20;
  lzma_stream stream = LZMA_STREAM_INIT;
  require(lzma_stream_decoder(&stream, kAnyMemory, LZMA_CONCATENATED) == LZMA_OK, name,
          ": there is no memory to unpack it");
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string bytes;
  size_t made = 0;
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    bytes.resize(std::max(made + kBlock, 2 * made));
    stream.next_out = reinterpret_cast<uint8_t*>(bytes.data()) + made;
    stream.avail_out = bytes.size() - made;
    result = lzma_code(&stream, LZMA_FINISH);
    made = bytes.size() - stream.avail_out;
  }
  lzma_end(&stream);
  require(result != LZMA_FORMAT_ERROR, name, " is not a file of xz");
  require(result == LZMA_STREAM_END, name, " is damaged or not whole");
  bytes.resize(made);
  return bytes;
}

}  // namespace longspan
