#include <algorithm>

#include <zlib.h>

#include "longspan/base/error.h"
#include "longspan/data/packed_file.h"

namespace longspan {

std::string unpack_gzip(std::string_view packed, const std::string& name) {
  constexpr int kGzip = 16 + MAX_WBITS;
  constexpr size_t kBlock = size_t{1} << 20;
  z_stream stream = {};
  require(inflateInit2(&stream, kGzip) == Z_OK, name,
          ": there is no memory to unpack it");
  std::string bytes;
  size_t taken = 0, made = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    if (made == bytes.size()) bytes.resize(std::max(made + kBlock, 2 * made));
    const size_t in = std::min(kBlock, packed.size() - taken);
    const size_t out = std::min(size_t{1} << 30, bytes.size() - made);
    // zlib does not write to what it reads, though its type says it might.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + made);
    stream.avail_out = static_cast<uInt>(out);
    result = inflate(&stream, Z_NO_FLUSH);
    taken += in - stream.avail_in;
    made += out - stream.avail_out;
    // Files may follow one another in one.
    if (result == Z_STREAM_END && taken < packed.size()) result = inflateReset(&stream);
  }
  inflateEnd(&stream);
  require(result == Z_STREAM_END, name, " is not a file of gzip, damaged or not whole");
  bytes.resize(made);
  return bytes;
}

}  // namespace longspan
