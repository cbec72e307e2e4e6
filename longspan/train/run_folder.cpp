#include "longspan/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "longspan/base/error.h"

namespace longspan {

bool is_trained_in(const std::string& path) {
  const int handle = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return false;
  const bool is_held = flock(handle, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(handle);
  return is_held;
}

RunFolder::RunFolder(const std::string& path) {
  require(!path.empty(), "training needs a folder for the run");
  for (std::filesystem::path at = path; !at.empty() && access(at.c_str(), F_OK) != 0;
       at = at.parent_path())
    made_.push_back(at.string());
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error, "cannot make the folder ", path, ": ", error.message());
  handle_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle_ < 0) {
    const int reason = errno;
    remove_made();
    fail("cannot open the folder ", path, ": ", std::strerror(reason));
  }
  if (flock(handle_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  close(handle_);
  if (reason == EWOULDBLOCK)
    fail("another process trains in ", path, "; choose another folder");
  remove_made();
  fail("cannot hold the folder ", path, " for one process: ", std::strerror(reason));
}

RunFolder::~RunFolder() {
  close(handle_);
  remove_made();
}

void RunFolder::remove_made() {
  for (const std::string& path : made_) rmdir(path.c_str());
}

}  // namespace longspan
