#include "longspan/report/chart.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iterator>
#include <map>
#include <sstream>

#include "longspan/base/words.h"
#include "longspan/report/chart_axis.h"
#include "longspan/report/chart_labels.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

// In pixels.
constexpr double kHeight = 300;  // of what a panel frames
constexpr double kLeft = 68, kRight = 20, kTop = 76, kTopUntitled = 40, kBottom = 56;
constexpr double kLegendRow = 22, kLetter = 6.6;
constexpr double kDigit = 7.7;  // in wide fonts

// In a page of several, the styles of all are those of one.
constexpr const char* kStyle =
    ".chart text{font:12px system-ui,sans-serif;fill:#24292f}"
    ".chart .title{font-size:15px;font-weight:600}"
    ".chart .panel{font-size:13px;font-weight:600}"
    ".chart .back,.chart .hollow{fill:#fff}.chart .grid{stroke:#d8dee4;stroke-width:1}"
    ".chart .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}"
    ".chart .bubble{fill:currentColor;fill-opacity:.35}"
    ".chart .label{paint-order:stroke;stroke:#fff;stroke-width:3px}"
    ".chart .mark{fill:currentColor}.chart .leader{stroke:#8c959f;stroke-width:1}"
    ".chart .mark,.chart .hollow,.chart .bubble{stroke:currentColor;stroke-width:1.6}"
    ".chart .dashed{color:#24292f}.chart .dashed .line{stroke-dasharray:6 4}"
    ".chart .d1 .line{stroke-dasharray:7 3}.chart .d2 .line{stroke-dasharray:2 3}"
    ".chart .d3 .line{stroke-dasharray:10 3 2 3}"
    ".chart .c0{color:#0067b0}.chart .c1{color:#c44f00}.chart .c2{color:#00805d}"
    ".chart .c3{color:#b83a86}.chart .c4{color:#6f4fc4}.chart .c5{color:#7d6300}"
    ".chart .c6{color:#b3261e}.chart .c7{color:#56617a}.chart .c8{color:#0d8390}"
    ".chart .c9{color:#7a4a2b}"
    "@media(prefers-color-scheme:dark){.chart text{fill:#e6e8eb}"
    ".chart .back,.chart .hollow{fill:#16181d}.chart .grid{stroke:#363b44}"
    ".chart .label{stroke:#16181d}"
    ".chart .dashed{color:#e6e8eb}"
    ".chart .c0{color:#58b4f0}.chart .c1{color:#ff9a4d}.chart .c2{color:#3fcfa0}"
    ".chart .c3{color:#f28cc4}.chart .c4{color:#b9a5ff}.chart .c5{color:#e0c34a}"
    ".chart .c6{color:#ff8a80}.chart .c7{color:#a9b4c8}.chart .c8{color:#5cc9d6}"
    ".chart .c9{color:#d3a17e}}";
constexpr int kColours = 10, kStrokes = 4;

std::string tick_text(double value) {
  if (std::abs(value) >= 1e6) return short_number(value);
  std::ostringstream text;
  text << value;
  return text.str();
}

struct Look {
  std::string style;
  int shape = 0;
};

// At most so many letters of a name: what is in its middle goes.
std::string cut(const std::string& name, size_t most) {
  if (name.size() <= most) return name;
  const auto is_inside = [&](size_t at) { return (name[at] & 0xc0) == 0x80; };
  size_t to = most / 2, from = name.size() - (most - most / 2 - 1);
  while (to > 0 && is_inside(to)) --to;
  while (from < name.size() && is_inside(from)) ++from;
  return name.substr(0, to) + "…" + name.substr(from);
}

// The path of a mark around 0: of the area of a circle of that radius.
std::string shape_path(int shape, double radius) {
  struct Corner {
    double x, y;
  };
  static const std::vector<Corner> kShapes[] = {
      {},
      {{-.886, -.886}, {.886, -.886}, {.886, .886}, {-.886, .886}},
      {{0, -1.5}, {1.3, .9}, {-1.3, .9}},
      {{0, -1.25}, {1.25, 0}, {0, 1.25}, {-1.25, 0}},
      {{-1.3, -.9}, {1.3, -.9}, {0, 1.5}}};
  const auto& corners = kShapes[static_cast<size_t>(shape) % std::size(kShapes)];
  std::ostringstream path;
  path << std::fixed << std::setprecision(1);
  if (corners.empty()) {
    const double r = radius;
    path << 'M' << -r << " 0A" << r << ' ' << r << " 0 1 0 " << r << " 0A" << r << ' '
         << r << " 0 1 0 " << -r << " 0";
  }
  for (size_t i = 0; i < corners.size(); ++i)
    path << (i == 0 ? 'M' : 'L') << radius * corners[i].x << ' '
         << radius * corners[i].y;
  return path.str() + "Z";
}

// How far a mark reaches from its middle, for a radius of 1.
double reach_of(int shape) {
  constexpr double kReach[] = {1, 1, 1.5, 1.25, 1.5};
  return kReach[static_cast<size_t>(shape) % std::size(kReach)];
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart), top_(chart.shows_title ? kTop : kTopUntitled) {
    out_ << std::fixed << std::setprecision(1);
    int coloured = 0, dashed = 0;
    for (const Panel& panel : chart.panels)
      for (const Series& series : panel.series) {
        if (looks_.contains(series.name)) continue;
        named_.push_back(&series);
        if (series.dashed) {
          looks_[series.name] = {"dashed", dashed++};
          continue;
        }
        const int number = series.colour >= 0 ? series.colour : coloured++;
        const int again = number / kColours;
        const int variant = series.variant >= 0 ? series.variant : number;
        const int stroke = (again + std::max(series.variant, 0)) % kStrokes;
        looks_[series.name] = {
            "c" + std::to_string(number % kColours) + " d" + std::to_string(stroke),
            again + variant};
      }
  }

  std::string drawn() {
    const auto panels = static_cast<double>(chart_.panels.size());
    const double width = panels * (kLeft + chart_.width + kRight);
    for (size_t i = 0; i < chart_.panels.size(); ++i)
      panel(chart_.panels[i], static_cast<double>(i) * (kLeft + chart_.width + kRight));
    double bottom = legend(top_ + kHeight + kBottom + 10, width);
    if (!chart_.note.empty())
      text(kLeft, bottom += kLegendRow, "class=\"note\"", chart_.note);
    if (chart_.shows_title) text(kLeft, 28, "class=\"title\"", chart_.title);
    std::ostringstream whole;
    whole << std::fixed << std::setprecision(0)
          << "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" "
             "viewBox=\"0 0 "
          << width << ' ' << bottom + 20 << "\" width=\"" << width << "\" height=\""
          << bottom + 20 << "\">\n<title>" << escaped(chart_.title)
          << "</title>\n<style>" << kStyle
          << "</style>\n<rect class=\"back\" width=\"100%\" "
          << "height=\"100%\"/>\n"
          << out_.str() << "</svg>\n";
    return whole.str();
  }

 private:
  void text(double x, double y, const std::string& attributes,
            const std::string& words) {
    out_ << "<text x=\"" << x << "\" y=\"" << y << "\" " << attributes << '>'
         << escaped(words) << "</text>\n";
  }

  void grid_line(double x1, double y1, double x2, double y2) {
    out_ << "<line class=\"grid\" x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2
         << "\" y2=\"" << y2 << "\"/>\n";
  }

  static std::vector<Point> shown(const Panel& panel, const Series& series) {
    const auto can_show = [](const Axis& axis, double value) {
      return std::isfinite(value) && (axis.scale == Scale::linear || value > 0);
    };
    std::vector<Point> points;
    for (const Point& point : series.points)
      if (can_show(panel.x, point.x) && can_show(panel.y, point.y))
        points.push_back(point);
    return points;
  }

  void panel(const Panel& panel, double left) {
    Range x_range, y_range;
    for (const double tick : panel.x.ticks) x_range.include(tick);
    for (const double tick : panel.y.ticks) y_range.include(tick);
    for (const Series& series : panel.series)
      for (const Point& point : shown(panel, series)) {
        x_range.include(point.x);
        y_range.include(point.y);
      }
    const double first = left + kLeft, last = first + chart_.width,
                 foot = top_ + kHeight;
    text(first, top_ - 14, "class=\"panel\"", panel.title);
    text((first + last) / 2, foot + 42, "text-anchor=\"middle\"", panel.x.label);
    std::ostringstream turned;
    turned << "text-anchor=\"middle\" transform=\"rotate(-90 " << left + 16 << ' '
           << top_ + kHeight / 2 << ")\"";
    text(left + 16, top_ + kHeight / 2, turned.str(), panel.y.label);
    grid_line(first, foot, last, foot);
    grid_line(first, top_, first, foot);
    if (x_range.empty() || y_range.empty()) return;

    const Place x(panel.x, x_range, first, last);
    const Place y(panel.y, y_range, foot, top_);
    double free_from = first - kLeft;
    for (const double tick : x.ticks()) {
      grid_line(x(tick), top_, x(tick), foot);
      const std::string words = tick_text(tick);
      const double half = kDigit * static_cast<double>(words.size()) / 2;
      const double middle = std::min(x(tick), last + kRight - half);
      if (middle - half < free_from) continue;
      text(middle, foot + 18, "text-anchor=\"middle\"", words);
      free_from = middle + half + kDigit;
    }
    for (const double tick : y.ticks()) {
      grid_line(first, y(tick), last, y(tick));
      text(first - 8, y(tick) + 4, "text-anchor=\"end\"", tick_text(tick));
    }
    std::vector<Bubble> bubbles;
    for (const Series& series : panel.series) {
      std::vector<Point> points = shown(panel, series);
      for (Point& point : points) {
        point.x = x(point.x);
        point.y = y(point.y);
        if (point.area > 0)
          bubbles.push_back({point.x, point.y,
                             radius_of(point) * reach_of(looks_.at(series.name).shape),
                             cut(point.label, 24)});
      }
      curve(series, points, series.has_marks ? points : std::vector<Point>());
    }
    for (const PlacedLabel& label : placed_labels(bubbles, {first, top_, last, foot})) {
      if (label.is_far)
        out_ << "<line class=\"leader\" x1=\"" << label.from_x << "\" y1=\""
             << label.from_y << "\" x2=\"" << label.x << "\" y2=\""
             << label.y + (label.y > label.from_y ? -11 : 3) << "\"/>\n";
      text(label.x, label.y, "class=\"label\" text-anchor=\"" + label.anchor + '"',
           label.text);
    }
  }

  // A line through `points`, and a mark at each of `marked`; in pixels.
  void curve(const Series& series, const std::vector<Point>& points,
             const std::vector<Point>& marked) {
    const auto& [style, shape] = looks_.at(series.name);
    out_ << "<g class=\"" << style << "\">";
    if (series.has_line) {
      out_ << "<polyline class=\"line\" points=\"";
      for (const Point& point : points) out_ << point.x << ',' << point.y << ' ';
      out_ << "\"/>";
    }
    for (const Point& point : marked) {
      const double radius = point.area > 0 ? radius_of(point) : kMark;
      const char* const kind = point.area > 0    ? "bubble"
                               : point.estimated ? "hollow"
                                                 : "mark";
      out_ << "<path class=\"" << kind << "\" transform=\"translate(" << point.x << ' '
           << point.y << ")\" d=\"" << shape_path(shape, radius) << "\">"
           << hover(point.label) << "</path>";
    }
    out_ << "</g>\n";
  }

  static std::string hover(const std::string& label) {
    return label.empty() ? "" : "<title>" + escaped(label) + "</title>";
  }

  static double radius_of(const Point& point) {
    constexpr double kLargest = 24, kLeast = 4;
    return std::max(kLeast, kLargest * std::sqrt(point.area));
  }

  // Returns where it ends.
  double legend(double y, double width) {
    constexpr double kSample = 34, kGap = 24;
    double x = kLeft;
    for (const Series* series : named_) {
      const std::string name = cut(series->name, 60);
      const double needed = kSample + kLetter * static_cast<double>(name.size());
      if (x > kLeft && x + needed > width - kRight) {
        x = kLeft;
        y += kLegendRow;
      }
      curve(*series, {{x, y - 4}, {x + kSample - 8, y - 4}},
            series->has_marks || !series->has_line
                ? std::vector<Point>{{x + kSample / 2 - 4, y - 4}}
                : std::vector<Point>());
      text(x + kSample, y, "class=\"name\"", name);
      x += needed + kGap;
    }
    return y;
  }

  static constexpr double kMark = 3.5;  // the radius of a mark on a line

  const Chart& chart_;
  double top_;  // of what panels frame
  std::map<std::string, Look> looks_;
  std::vector<const Series*> named_;  // the first of each name
  std::ostringstream out_;
};

}  // namespace

std::string svg(const Chart& chart) { return Drawing(chart).drawn(); }

}  // namespace longspan::report
