#include "longspan/base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "longspan/base/error.h"

namespace longspan {
namespace {

// The folder of a file, held open: a name is durable when its folder is.
class Folder {
 public:
  explicit Folder(const std::string& path) {
    const auto folder = std::filesystem::path(path).parent_path();
    handle_ =
        open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  ~Folder() {
    if (handle_ >= 0) close(handle_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  bool is_open() const { return handle_ >= 0; }
  void sync() const { fsync(handle_); }  // where a file system cannot, nothing is lost

 private:
  int handle_ = -1;
};

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
  if (closed != 0) give_up(errno);
  const Folder folder(path_);
  if (!folder.is_open() || std::rename(unfinished_.c_str(), path_.c_str()) != 0)
    give_up(errno);
  folder.sync();
}

void sync_folder(const std::string& path) {
  const Folder folder(path + "/");
  if (folder.is_open()) folder.sync();
}

void write_whole(const std::string& path, std::string_view bytes) {
  WholeFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace longspan
