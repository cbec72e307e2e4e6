#include "longspan/data/byte_source.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "longspan/base/error.h"

namespace longspan {
namespace {

class PlainFile final : public ByteSource {
 public:
  explicit PlainFile(const std::string& path)
      : path_(path), file_(std::fopen(path.c_str(), "rbe")) {
    require(file_ != nullptr, "cannot read ", path_, ": ", std::strerror(errno));
  }
  ~PlainFile() override {
    if (file_) std::fclose(file_);
  }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  size_t read(char* to, size_t size) override {
    const size_t got = std::fread(to, 1, size, file_);
    require(!std::ferror(file_), "cannot read ", path_, ": ", std::strerror(errno));
    return got;
  }

 private:
  std::string path_;
  std::FILE* file_;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  if (path.ends_with(".gz")) return open_gzip(path);
  if (path.ends_with(".xz")) return open_xz(path);
  return std::make_unique<PlainFile>(path);
}

std::string read_unpacked(const std::string& path) {
  constexpr size_t kBlock = 1 << 18;
  const auto source = open_bytes(path);
  std::string contents;
  size_t got = kBlock;
  while (got == kBlock) {
    const size_t before = contents.size();
    contents.resize(before + kBlock);
    got = source->read(contents.data() + before, kBlock);
    contents.resize(before + got);
  }
  return contents;
}

std::string unpacked_name(const std::string& path) {
  const bool packed = path.ends_with(".gz") || path.ends_with(".xz");
  return packed ? path.substr(0, path.size() - 3) : path;
}

}  // namespace longspan
