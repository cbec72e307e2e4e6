// Pathfinder's images in the files of the Long Range Arena's release:
//
//   pathfinder32/curv_baseline/imgs/0/sample_0.png
//   pathfinder32/curv_baseline/metadata/0.npy
//
// The second, text in spite of its name, has a line for every image of imgs/0: folder,
// file, number, label, and how it was drawn. The folders are called pathfinder32, 64,
// 128 and 256, and in them curv_baseline (easy), curv_contour_length_9 (intermediate)
// and curv_contour_length_14 (hard).

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/pathfinder.h"

namespace longspan {

// "pathfinder32/curv_baseline"
std::string pathfinder_folder(int64_t size, std::string_view difficulty);

struct PathfinderFile {
  std::string path = {};  // of the image
  int64_t label = 0;
};

struct PathfinderListing {
  std::vector<PathfinderFile> files = {};  // by the numbers of the metadata, then lines
  int64_t empty = 0;                       // images without a byte, which are left out
};

// All images that the metadata in a folder such as the one above tells of.
PathfinderListing list_pathfinder(const std::string& folder);

// The pixels of one, which must be `size` x `size`.
std::vector<uint8_t> read_pathfinder(const PathfinderFile& file, int64_t size);

// Images `first` .. `first + count - 1` of those that a seed gives, drawn by all
// threads; the same whatever their number.
std::vector<PathfinderImage> draw_pathfinder(const PathfinderOptions& options,
                                             uint64_t seed, int64_t first,
                                             int64_t count);

// Draws images into such a folder, 1,000 a subfolder; `tell` is called after each of
// these with how many there are. Metadata comes last: what a stop left unfinished is
// not listed.
void write_pathfinder(const std::string& folder, const PathfinderOptions& options,
                      uint64_t seed, int64_t count,
                      const std::function<void(int64_t)>& tell);

}  // namespace longspan
