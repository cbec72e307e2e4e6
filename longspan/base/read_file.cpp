#include "longspan/base/read_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "longspan/base/error.h"

namespace longspan {

std::string read_file(const std::string& path) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      std::fopen(path.c_str(), "rbe"), close);
  if (!file) fail("cannot read ", path, ": ", std::strerror(errno));
  std::string contents;
  std::vector<char> block(1 << 16);
  size_t got = 0;
  do {
    got = std::fread(block.data(), 1, block.size(), file.get());
    contents.append(block.data(), got);
  } while (got == block.size());
  if (std::ferror(file.get())) fail("cannot read ", path, ": ", std::strerror(errno));
  return contents;
}

}  // namespace longspan
