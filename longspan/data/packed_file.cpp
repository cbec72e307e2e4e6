#include "longspan/data/packed_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"

namespace longspan {
namespace {

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool is_packed(const std::string& path) {
  return path.ends_with(".xz") || path.ends_with(".gz");
}

}  // namespace

std::string found_file(const std::string& path) {
  if (is_there(path)) return path;
  for (const char* const end : {".xz", ".gz"})
    if (is_there(path + end)) return path + end;
  return path;
}

std::string read_unpacked(const std::string& path) {
  const std::string found = found_file(path);
  std::string bytes = read_file(found);
  if (found.ends_with(".xz")) return unpack_xz(bytes, found);
  if (found.ends_with(".gz")) return unpack_gzip(bytes, found);
  return bytes;
}

void for_each_line(const std::string& path,
                   const std::function<void(std::string_view, int64_t)>& line) {
  int64_t number = 0;
  const auto tell = [&](std::string_view text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    line(text, ++number);
  };
  const std::string found = found_file(path);
  if (is_packed(found)) {
    const std::string bytes = read_unpacked(found);
    for (std::string_view left = bytes; !left.empty();) {
      const size_t end = std::min(left.find('\n'), left.size());
      tell(left.substr(0, end));
      left.remove_prefix(std::min(end + 1, left.size()));
    }
    return;
  }
  std::ifstream file(found, std::ios::binary);
  require(file.is_open(), "cannot read ", found, ": ", std::strerror(errno));
  for (std::string text; std::getline(file, text);) tell(text);
  require(!file.bad(), "cannot read ", found, ": ", std::strerror(errno));
}

}  // namespace longspan
