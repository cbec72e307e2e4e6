#include "longspan/data/pathfinder_files.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include <ATen/Parallel.h>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/data/grey_image.h"
#include "longspan/data/packed_file.h"

namespace longspan {
namespace {

// The number of "17.npy", or -1.
int64_t batch_of(std::string_view name) {
  int64_t number = -1;
  const size_t dot = name.find('.');
  if (dot == name.npos || name.substr(dot) != ".npy") return -1;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + dot, number);
  return error == std::errc() && stop == name.data() + dot ? number : -1;
}

std::vector<int64_t> batches_of(const std::string& folder) {
  std::vector<int64_t> batches;
  DIR* const handle = opendir((folder + "/metadata").c_str());
  if (handle) {
    while (const dirent* entry = readdir(handle))
      if (const int64_t batch = batch_of(entry->d_name); batch >= 0)
        batches.push_back(batch);
    closedir(handle);
  }
  std::ranges::sort(batches);
  require(!batches.empty(), folder, "/metadata has no files such as 0.npy");
  return batches;
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error, "cannot make the folder ", path, ": ", error.message());
}

}  // namespace

std::string pathfinder_folder(int64_t size, std::string_view difficulty) {
  const int64_t dashes = arena_pathfinder(size, difficulty).dashes;
  return "pathfinder" + std::to_string(size) + "/curv_" +
         (difficulty == "easy" ? "baseline"
                               : "contour_length_" + std::to_string(dashes));
}

PathfinderListing list_pathfinder(const std::string& folder) {
  PathfinderListing listing;
  for (const int64_t batch : batches_of(folder)) {
    const std::string path = folder + "/metadata/" + std::to_string(batch) + ".npy";
    for_each_line(path, [&](std::string_view line, int64_t number) {
      if (line.empty()) return;
      std::istringstream words{std::string(line)};
      std::string place, name, image;
      int64_t label = -1;
      words >> place >> name >> image >> label;
      require(!words.fail() && (label == 0 || label == 1), path, ", line ", number,
              ": must be a folder, a file, a number and a label of 0 or 1, got '",
              line.substr(0, 60), "'");
      PathfinderFile file{folder + "/" + place + "/" + name, label};
      struct stat facts;
      require(stat(file.path.c_str(), &facts) == 0, path, ", line ", number,
              ": there is no ", file.path);
      if (facts.st_size == 0)
        ++listing.empty;
      else
        listing.files.push_back(std::move(file));
    });
  }
  return listing;
}

std::vector<uint8_t> read_pathfinder(const PathfinderFile& file, int64_t size) {
  GreyImage image = read_png(read_file(file.path), file.path);
  require(image.rows == size && image.columns == size, file.path, " must have ", size,
          " x ", size, " pixels, got ", image.rows, " x ", image.columns);
  return std::move(image.pixels);
}

std::vector<PathfinderImage> draw_pathfinder(const PathfinderOptions& options,
                                             uint64_t seed, int64_t first,
                                             int64_t count) {
  std::vector<PathfinderImage> images(static_cast<size_t>(count));
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      images[static_cast<size_t>(i)] = generate_pathfinder(
          options, pathfinder_key(seed, static_cast<uint64_t>(first + i)));
  });
  return images;
}

void write_pathfinder(const std::string& folder, const PathfinderOptions& options,
                      uint64_t seed, int64_t count,
                      const std::function<void(int64_t)>& tell) {
  constexpr int64_t kEach = 1000;
  make_folder(folder + "/metadata");
  for (int64_t first = 0; first < count; first += kEach) {
    const std::string batch = std::to_string(first / kEach), place = "imgs/" + batch;
    make_folder(folder + "/" + place);
    const auto images =
        draw_pathfinder(options, seed, first, std::min(kEach, count - first));
    std::ostringstream lines;
    for (size_t i = 0; i < images.size(); ++i) {
      const std::string name = "sample_" + std::to_string(i) + ".png";
      const std::string path = folder + "/" + place + "/" + name;
      const std::string bytes = png_of({options.size, options.size, images[i].pixels});
      // Durable one by one they would take hours.
      std::FILE* const file = std::fopen(path.c_str(), "wbe");
      const bool written =
          file && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
      require((!file || std::fclose(file) == 0) && written, "cannot write ", path);
      lines << place << ' ' << name << ' ' << i << ' ' << images[i].label << ' '
            << options.continuity << ' ' << options.dashes << ' '
            << options.distractor_dashes << ' ' << options.dash << ' '
            << options.thickness << ' ' << images[i].margin << " 1\n";
    }
    write_whole(folder + "/metadata/" + batch + ".npy", lines.str());
    tell(first + std::ssize(images));
  }
}

}  // namespace longspan
