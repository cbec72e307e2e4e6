// Where the names of bubbles stand, so that they can be read.

#pragma once

#include <string>
#include <vector>

namespace longspan::report {

// In pixels.
struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
};

struct Bubble {
  double x = 0, y = 0, radius = 0;
  std::string label = {};
};

struct PlacedLabel {
  double x = 0, y = 0;
  std::string anchor = {};  // of the text: start, middle or end
  std::string text = {};
  bool is_far = false;  // a line from the bubble, at `from`, leads to it
  double from_x = 0, from_y = 0;
};

// Within the frame, near their bubbles, on none other where there is room. No two lie
// on each other: a label without a place is left out.
std::vector<PlacedLabel> placed_labels(const std::vector<Bubble>& bubbles,
                                       const Box& frame);

}  // namespace longspan::report
