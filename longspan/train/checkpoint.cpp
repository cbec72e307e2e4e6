#include "longspan/train/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <nlohmann/json.hpp>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/whole_file.h"

namespace longspan {
namespace {

using nlohmann::json;

constexpr char kModel[] = "model.safetensors", kOptimizer[] = "optimizer.safetensors",
               kState[] = "state.json", kDone[] = "DONE";
constexpr const char* kParts[] = {kModel, kOptimizer, kState};

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const handle = opendir(folder.c_str());
  if (!handle) return names;
  while (const dirent* entry = readdir(handle)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(handle);
  return names;
}

void remove_checkpoint(const std::string& folder) {
  unlink((folder + '/' + kDone).c_str());  // first: from here on it does not count
  for (const std::string& name : entries(folder)) unlink((folder + '/' + name).c_str());
  rmdir(folder.c_str());
}

void make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return;
  fail("cannot make the folder ", path, ": ", std::strerror(errno));
}

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Each gets the name of the other, at once.
bool swap_names(const std::string& a, const std::string& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

// The step of "step-40", or -1.
int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  const bool whole = error == std::errc() && stop == end;
  return whole && name == std::string(kPrefix) + std::to_string(step) ? step : -1;
}

json described(const std::string& path) {
  const std::string bytes = read_file(path);
  return {{"bytes", bytes.size()}, {"crc32c", crc32c(bytes)}};
}

void check(const std::string& folder, const std::vector<std::string>& parts) {
  struct stat facts;
  require(stat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode), folder,
          ": there is no such checkpoint");
  const std::string done_path = folder + '/' + kDone;
  require(stat(done_path.c_str(), &facts) == 0, folder,
          ": this checkpoint was not finished; choose another");
  const json done =
      json::parse(read_file(done_path), nullptr, /*allow_exceptions=*/false);
  for (const std::string& part : parts) {
    const std::string path = folder + '/' + part;
    require(done.is_object() && done.contains(part), folder,
            ": DONE does not say what ", part, " should be; choose another checkpoint");
    require(described(path) == done[part], path,
            ": differs from what was written; choose another checkpoint");
  }
}

}  // namespace

std::string Checkpoints::path(int64_t step) const {
  return folder_ + "/step-" + std::to_string(step);
}

void Checkpoints::write(int64_t step, const Checkpoint& checkpoint) const {
  if (!is_there(folder_)) {
    make_folder(folder_);
    sync_folder(folder_ + "/..");
  }
  const std::string unfinished = path(step) + ".unfinished-" + std::to_string(getpid());
  remove_checkpoint(unfinished);
  make_folder(unfinished);
  try {
    write_tensors(unfinished + '/' + kModel, checkpoint.model);
    write_tensors(unfinished + '/' + kOptimizer, checkpoint.optimizer);
    write_whole(unfinished + '/' + kState, checkpoint.state);
    json sums;
    for (const char* part : kParts) sums[part] = described(unfinished + '/' + part);
    write_whole(unfinished + '/' + kDone, sums.dump(2) + "\n");
    const bool placed =
        rename(unfinished.c_str(), path(step).c_str()) == 0 ||
        (is_there(path(step) + "/.") && swap_names(unfinished, path(step)));
    if (!placed) fail("cannot write ", path(step), ": ", std::strerror(errno));
    sync_folder(folder_);
    remove_checkpoint(unfinished);  // what had the name before
  } catch (...) {
    remove_checkpoint(unfinished);
    throw;
  }
}

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : entries(folder_)) {
    const int64_t step = step_of(name);
    if (step >= 0 && access((path(step) + '/' + kDone).c_str(), F_OK) == 0)
      steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

void Checkpoints::prune(int64_t step, int64_t keep,
                        const std::vector<int64_t>& always) const {
  auto finished = steps();
  std::erase_if(finished, [&](int64_t later) { return later > step; });
  const auto is_kept = [&](int64_t one) {
    if (one > step || std::ranges::find(always, one) != always.end()) return true;
    const auto place = std::ranges::find(finished, one);
    return place != finished.end() && finished.end() - place <= keep;
  };
  for (const std::string& name : entries(folder_)) {
    const int64_t one = step_of(name);
    const bool unfinished =
        name.starts_with("step-") && name.find(".unfinished-") != std::string::npos;
    if (unfinished || (one >= 0 && !is_kept(one)))
      remove_checkpoint(folder_ + '/' + name);
  }
}

Checkpoint read_checkpoint(const std::string& path) {
  check(path, {std::begin(kParts), std::end(kParts)});
  return {.model = read_tensors(path + '/' + kModel).tensors,
          .optimizer = read_tensors(path + '/' + kOptimizer).tensors,
          .state = read_file(path + '/' + kState)};
}

NamedTensors read_weights(const std::string& path) {
  check(path, {kModel});
  return read_tensors(path + '/' + kModel).tensors;
}

}  // namespace longspan
