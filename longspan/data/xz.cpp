#include <lzma.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"

namespace longspan {
namespace {

class XzFile final : public ByteSource {
 public:
  explicit XzFile(const std::string& path)
      : path_(path), file_(std::fopen(path.c_str(), "rbe")), packed_(1 << 16) {
    require(file_ != nullptr, "cannot read ", path_, ": ", std::strerror(errno));
    constexpr uint64_t kAnyMemory = std::numeric_limits<uint64_t>::max();
    if (lzma_stream_decoder(&stream_, kAnyMemory, LZMA_CONCATENATED) != LZMA_OK) {
      std::fclose(file_);
      fail("cannot read ", path_, ": liblzma has no memory to unpack it");
    }
  }
  ~XzFile() override {
    lzma_end(&stream_);
    std::fclose(file_);
  }
  XzFile(const XzFile&) = delete;
  XzFile& operator=(const XzFile&) = delete;

  size_t read(char* to, size_t size) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(to);
    stream_.avail_out = size;
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0) refill();
      const lzma_ret status =
          lzma_code(&stream_, std::feof(file_) ? LZMA_FINISH : LZMA_RUN);
      ended_ = status == LZMA_STREAM_END;
      require(status != LZMA_FORMAT_ERROR, path_, " is not in xz's format");
      require(status == LZMA_OK || ended_, path_,
              " is damaged or cut off, not whole in xz's format");
    }
    return size - stream_.avail_out;
  }

 private:
  void refill() {
    stream_.next_in = packed_.data();
    stream_.avail_in = std::fread(packed_.data(), 1, packed_.size(), file_);
    require(!std::ferror(file_), "cannot read ", path_, ": ", std::strerror(errno));
  }

  std::string path_;
  std::FILE* file_;
  std::vector<uint8_t> packed_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_xz(const std::string& path) {
  return std::make_unique<XzFile>(path);
}

}  // namespace longspan
