// Pathfinder: are two marked ends those of one dashed curve, or of two? Linsley et al.
// 2018, arXiv:1805.08315; as in the Long Range Arena, Tay et al. 2020,
// arXiv:2011.04006.
//
// The generator grows curves as the one behind the Arena's images does, with a seed;
// its images are its own. Nothing has a contrast of its own: curves and distractors are
// drawn alike, so that brightness does not tell them apart (dashes thinner than a pixel
// are dimmer than marks). A pixel's share of a dash goes by the distance of its middle,
// not by a filter; and a curve keeps off the last dash of the other one, too.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/base/random.h"

namespace longspan {

struct PathfinderOptions {
  int64_t size = 32;        // of the image, in pixels
  int64_t dashes = 14;      // of each of the two curves
  int64_t distractors = 5;  // other curves, as many as find room
  int64_t distractor_dashes = 4;
  double dash = 2;  // length of a dash
  double thickness = 0.5;
  std::vector<double> margins = {1};  // around a dash; one is drawn for an image
  double padding = 1;                 // that stays free at the border
  double marker = 1.5;                // radius
  double distance = 7;                // between the beginnings of the two curves
  double continuity = 1;              // how straight curves are
};

// The options of the Long Range Arena for 32, 64, 128 (Path-X) and 256 pixels, and how
// long the curves are: easy 6 dashes, intermediate 9, hard 14.
PathfinderOptions arena_pathfinder(int64_t size, std::string_view difficulty);

struct PathfinderImage {
  struct Dash {
    double row = 0, column = 0;  // of its tail
    double angle = 0;            // in which its head lies, in radians
  };

  std::vector<uint8_t> pixels = {};  // [size, size], row by row
  int label = 0;                     // 1: the markers are at the ends of one curve
  std::vector<Dash> curves[2] = {};  // as they were drawn, from their beginnings
  int64_t distractors = 0;           // that found room
  double margin = 0;                 // around dashes, as drawn
};

// The key of an image of those that a seed gives.
inline Key pathfinder_key(uint64_t seed, uint64_t number) {
  return mix(Key{seed}, number);
}

// The label of the image of a key.
int pathfinder_label(Key key);

// One image. The same key gives the same image.
PathfinderImage generate_pathfinder(const PathfinderOptions& options, Key key);

}  // namespace longspan
