#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"

namespace longspan {
namespace {

class GzipFile final : public ByteSource {
 public:
  explicit GzipFile(const std::string& path)
      : path_(path), file_(gzopen(path.c_str(), "rbe")) {
    require(file_ != nullptr, "cannot read ", path_, ": ", std::strerror(errno));
  }
  ~GzipFile() override {
    if (file_) gzclose(file_);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  size_t read(char* to, size_t size) override {
    const int got = gzread(file_, to, static_cast<unsigned>(size));
    int status = Z_OK;
    const char* const reason = gzerror(file_, &status);
    require(status != Z_ERRNO, "cannot read ", path_, ": ", std::strerror(errno));
    // Z_BUF_ERROR: it ends too early.
    require(got >= 0 && (status == Z_OK || status == Z_STREAM_END), path_,
            " is damaged or cut off, not whole in gzip's format: ", reason);
    require(got == 0 || !gzdirect(file_), path_, " is not in gzip's format");
    return static_cast<size_t>(got);
  }

 private:
  std::string path_;
  gzFile file_;
};

}  // namespace

std::unique_ptr<ByteSource> open_gzip(const std::string& path) {
  return std::make_unique<GzipFile>(path);
}

}  // namespace longspan
