#include "longspan/base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "longspan/base/error.h"

namespace longspan {
namespace {

// A name is durable when its folder is.
bool sync_folder(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  const int handle =
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return false;
  const bool done = fsync(handle) == 0;
  close(handle);
  return done;
}

}  // namespace

WholeFile::WholeFile(std::string path)
    : path_(std::move(path)),
      unfinished_(path_ + ".unfinished-" + std::to_string(getpid())) {
  file_ = std::fopen(unfinished_.c_str(), "wbe");
  if (!file_) fail("cannot write ", path_, ": ", std::strerror(errno));
}

WholeFile::~WholeFile() {
  if (!file_) return;
  std::fclose(file_);
  unlink(unfinished_.c_str());
}

void WholeFile::give_up(int error) {
  if (file_) std::fclose(file_);
  file_ = nullptr;
  unlink(unfinished_.c_str());
  fail("cannot write ", path_, ": ", std::strerror(error));
}

void WholeFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) give_up(errno);
}

void WholeFile::commit() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) give_up(errno);
  const int closed = std::fclose(file_);
  file_ = nullptr;
  if (closed != 0 || std::rename(unfinished_.c_str(), path_.c_str()) != 0 ||
      !sync_folder(path_))
    give_up(errno);
}

}  // namespace longspan
