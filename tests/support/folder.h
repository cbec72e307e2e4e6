// A folder for one test, gone with it.
//
// Plain POSIX: LibTorch's Python builds export a std::filesystem of their own, with
// which remove_all() and directory iterators of a newer compiler crash.

#pragma once

#include <dirent.h>
#include <ftw.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace longspan::testing {

class Folder {
 public:
  Folder() {
    const char* place = std::getenv("TMPDIR");
    path_ = std::string(place ? place : "/tmp") + "/longspan-XXXXXX";
    if (!mkdtemp(path_.data())) std::abort();
  }
  ~Folder() {
    const auto remove = [](const char* path, const struct stat*, int, struct FTW*) {
      return std::remove(path);
    };
    nftw(path_.c_str(), remove, /*nopenfd=*/16, FTW_DEPTH | FTW_PHYS);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  int entries() const {
    DIR* const folder = opendir(path_.c_str());
    int count = 0;
    while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
  }

 private:
  std::string path_;
};

}  // namespace longspan::testing
