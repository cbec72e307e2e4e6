// Files as they are or packed, by the end of their names: .gz by zlib, .xz by liblzma.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace longspan {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Up to `size` bytes; fewer only where the file ends.
  virtual size_t read(char* to, size_t size) = 0;
};

// Every failure, now or while reading, is an Error that names the path.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

// All bytes of a file, unpacked.
std::string read_unpacked(const std::string& path);

// The name without the .gz or .xz at its end.
std::string unpacked_name(const std::string& path);

// Used by open_bytes() alone; a build may lack the library of either.
std::unique_ptr<ByteSource> open_gzip(const std::string& path);
std::unique_ptr<ByteSource> open_xz(const std::string& path);

}  // namespace longspan
