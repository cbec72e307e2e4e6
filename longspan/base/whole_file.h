// A file that appears whole or not at all.

#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace longspan {

// Writes beside `path`; commit() makes it durable and gives it its name, in place of
// what had the name before. Without commit() nothing stays. Every failure is an Error
// that names the path.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(std::string_view bytes);
  void commit();

 private:
  [[noreturn]] void give_up(int error);

  std::string path_, unfinished_;
  std::FILE* file_ = nullptr;
};

// Makes the names in a folder durable, as far as its file system can.
void sync_folder(const std::string& path);

// The whole of a file at once.
void write_whole(const std::string& path, std::string_view bytes);

}  // namespace longspan
