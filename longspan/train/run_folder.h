// The folder of a run while it is trained in.

#pragma once

#include <string>
#include <vector>

namespace longspan {

// Whether a process trains in the folder now.
bool is_trained_in(const std::string& path);

// Makes the folder with those above it and holds it for this process alone. Folders
// that it made go again with it, unless something is in them.
class RunFolder {
 public:
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

 private:
  void remove_made();

  std::vector<std::string> made_;
  int handle_ = -1;
};

}  // namespace longspan
