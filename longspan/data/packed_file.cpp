#include "longspan/data/packed_file.h"

#include <unistd.h>

#include <vector>

#include "longspan/data/byte_source.h"

namespace longspan {
namespace {

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

std::string found_file(const std::string& path) {
  if (is_there(path)) return path;
  for (const char* const end : {".xz", ".gz"})
    if (is_there(path + end)) return path + end;
  return path;
}

void for_each_line(const std::string& path,
                   const std::function<void(std::string_view, int64_t)>& line) {
  int64_t number = 0;
  const auto tell = [&](std::string_view text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    line(text, ++number);
  };
  const auto file = open_bytes(found_file(path));
  std::vector<char> block(size_t{1} << 20);
  std::string begun;  // a line of which the end has not been read
  size_t got = 0;
  do {
    got = file->read(block.data(), block.size());
    for (std::string_view left(block.data(), got); !left.empty();) {
      const size_t end = left.find('\n');
      if (end == left.npos) {
        begun += left;
        break;
      }
      const auto part = left.substr(0, end);
      left.remove_prefix(end + 1);
      if (begun.empty()) {
        tell(part);
        continue;
      }
      begun += part;
      tell(begun);
      begun.clear();
    }
  } while (got == block.size());
  if (!begun.empty()) tell(begun);
}

}  // namespace longspan
