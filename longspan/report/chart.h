// Charts of lines and bubbles as SVG: one file that needs no other, for dark and for
// light pages.

#pragma once

#include <string>
#include <vector>

namespace longspan::report {

enum class Scale { linear, logarithmic };

struct Axis {
  std::string label = {};
  Scale scale = Scale::linear;
  std::vector<double> ticks = {};  // all are shown; none: round numbers
  double margin = 0.04;            // at both ends, as a share of the range
};

struct Point {
  double x = 0, y = 0;
  bool estimated = false;  // drawn hollow
  double area = 0;         // of a bubble, as a share of the largest; 0: a small mark
  std::string label =
      {};  // beside a bubble, where there is room; shown when pointed at
};

struct Series {
  std::string name = {};
  std::vector<Point> points = {};
  // Numbers of a colour, and of a shape and a stroke; below 0: its own.
  int colour = -1, variant = -1;
  bool dashed = false;  // what the others are compared with: in the colour of text
  bool has_line = true, has_marks = true;
};

struct Panel {
  std::string title = {};
  Axis x = {}, y = {};
  std::vector<Series> series = {};
};

// Panels side by side over one legend: series of one name look alike in all of them.
struct Chart {
  std::string title = {};
  std::string note = {};  // small, at the bottom
  std::vector<Panel> panels = {};
  bool shows_title = true;  // else it is only read aloud
  double width = 400;       // of what a panel frames, in pixels
};

// Leaves out points that an axis cannot show: infinite ones, and those of 0 or less
// where it is logarithmic.
std::string svg(const Chart& chart);

}  // namespace longspan::report
