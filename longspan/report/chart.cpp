#include "longspan/report/chart.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iterator>
#include <map>
#include <sstream>

#include "longspan/base/words.h"
#include "longspan/report/chart_axis.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

// In pixels.
constexpr double kWidth = 400, kHeight = 300;  // of what a panel frames
constexpr double kLeft = 68, kRight = 20, kTop = 76, kBottom = 56;
constexpr double kLegendRow = 22, kLetter = 6.6;

// In a page of several, the styles of all are those of one.
constexpr const char* kStyle =
    ".chart text{font:12px system-ui,sans-serif;fill:#24292f}"
    ".chart .title{font-size:15px;font-weight:600}"
    ".chart .panel{font-size:13px;font-weight:600}"
    ".chart .back,.chart .hollow{fill:#fff}.chart .grid{stroke:#d8dee4;stroke-width:1}"
    ".chart .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}"
    ".chart .bubble{fill:currentColor;fill-opacity:.35}"
    ".chart .mark{fill:currentColor}"
    ".chart .mark,.chart .hollow,.chart .bubble{stroke:currentColor;stroke-width:1.6}"
    ".chart .dashed{color:#24292f}.chart .dashed .line{stroke-dasharray:6 4}"
    ".chart .c0{color:#0067b0}.chart .c1{color:#c44f00}.chart .c2{color:#00805d}"
    ".chart .c3{color:#b83a86}.chart .c4{color:#6f4fc4}.chart .c5{color:#7d6300}"
    ".chart .c6{color:#b3261e}.chart .c7{color:#56617a}"
    "@media(prefers-color-scheme:dark){.chart text{fill:#e6e8eb}"
    ".chart .back,.chart .hollow{fill:#16181d}.chart .grid{stroke:#363b44}"
    ".chart .dashed{color:#e6e8eb}"
    ".chart .c0{color:#58b4f0}.chart .c1{color:#ff9a4d}.chart .c2{color:#3fcfa0}"
    ".chart .c3{color:#f28cc4}.chart .c4{color:#b9a5ff}.chart .c5{color:#e0c34a}"
    ".chart .c6{color:#ff8a80}.chart .c7{color:#a9b4c8}}";
constexpr int kColours = 8;

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

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    out_ << std::fixed << std::setprecision(1);
    int coloured = 0, dashed = 0;
    for (const Panel& panel : chart.panels)
      for (const Series& series : panel.series) {
        if (looks_.contains(series.name)) continue;
        looks_[series.name] = series.dashed
                                  ? Look{"dashed", dashed++}
                                  : Look{"c" + std::to_string(coloured % kColours),
                                         coloured + coloured / kColours};
        if (!series.dashed) ++coloured;
        named_.push_back(&series);
      }
  }

  std::string drawn() {
    const auto panels = static_cast<double>(chart_.panels.size());
    const double width = panels * (kLeft + kWidth + kRight);
    for (size_t i = 0; i < chart_.panels.size(); ++i)
      panel(chart_.panels[i], static_cast<double>(i) * (kLeft + kWidth + kRight));
    double bottom = legend(kTop + kHeight + kBottom + 10, width);
    if (!chart_.note.empty())
      text(kLeft, bottom += kLegendRow, "class=\"note\"", chart_.note);
    text(kLeft, 28, "class=\"title\"", chart_.title);
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
    const double first = left + kLeft, last = first + kWidth, foot = kTop + kHeight;
    text(first, kTop - 14, "class=\"panel\"", panel.title);
    text((first + last) / 2, foot + 42, "text-anchor=\"middle\"", panel.x.label);
    std::ostringstream turned;
    turned << "text-anchor=\"middle\" transform=\"rotate(-90 " << left + 16 << ' '
           << kTop + kHeight / 2 << ")\"";
    text(left + 16, kTop + kHeight / 2, turned.str(), panel.y.label);
    grid_line(first, foot, last, foot);
    grid_line(first, kTop, first, foot);
    if (x_range.empty() || y_range.empty()) return;

    const Place x(panel.x, x_range, first, last);
    const Place y(panel.y, y_range, foot, kTop);
    double free_from = first - kLeft;
    for (const double tick : x.ticks()) {
      grid_line(x(tick), kTop, x(tick), foot);
      const std::string words = tick_text(tick);
      const double half = kLetter * static_cast<double>(words.size()) / 2;
      if (x(tick) - half < free_from) continue;
      text(x(tick), foot + 18, "text-anchor=\"middle\"", words);
      free_from = x(tick) + half + kLetter;
    }
    for (const double tick : y.ticks()) {
      grid_line(first, y(tick), last, y(tick));
      text(first - 8, y(tick) + 4, "text-anchor=\"end\"", tick_text(tick));
    }
    for (const Series& series : panel.series) {
      std::vector<Point> points = shown(panel, series);
      for (Point& point : points) {
        point.x = x(point.x);
        point.y = y(point.y);
      }
      curve(series, points, series.has_marks ? points : std::vector<Point>());
    }
  }

  // A line through `points`, and a mark at each of `marked`; in pixels.
  void curve(const Series& series, const std::vector<Point>& points,
             const std::vector<Point>& marked) {
    constexpr const char* kShapes[] = {
        "M-3.5 0A3.5 3.5 0 1 0 3.5 0A3.5 3.5 0 1 0 -3.5 0Z", "M-3 -3H3V3H-3Z",
        "M0 -4L4 3H-4Z", "M0 -4.5L4.5 0L0 4.5L-4.5 0Z"};
    const auto& [style, shape] = looks_.at(series.name);
    out_ << "<g class=\"" << style << "\">";
    if (series.has_line) {
      out_ << "<polyline class=\"line\" points=\"";
      for (const Point& point : points) out_ << point.x << ',' << point.y << ' ';
      out_ << "\"/>";
    }
    for (const Point& point : marked) {
      if (point.area > 0) {
        bubble(point);
        continue;
      }
      const int own = series.has_line ? shape : 0;
      out_ << "<path class=\"" << (point.estimated ? "hollow" : "mark")
           << "\" transform=\"translate(" << point.x << ' ' << point.y << ")\" d=\""
           << kShapes[static_cast<size_t>(own) % std::size(kShapes)] << "\">"
           << hover(point.label) << "</path>";
    }
    out_ << "</g>\n";
  }

  static std::string hover(const std::string& label) {
    return label.empty() ? "" : "<title>" + escaped(label) + "</title>";
  }

  void bubble(const Point& point) {
    constexpr double kLargest = 30, kLeast = 3;
    const double radius = std::max(kLeast, kLargest * std::sqrt(point.area));
    out_ << "<circle class=\"bubble\" cx=\"" << point.x << "\" cy=\"" << point.y
         << "\" r=\"" << radius << "\">" << hover(point.label) << "</circle>\n";
    text(point.x, point.y - radius - 4, "text-anchor=\"middle\"", point.label);
  }

  // Returns where it ends.
  double legend(double y, double width) {
    constexpr double kSample = 34, kGap = 24;
    double x = kLeft;
    for (const Series* series : named_) {
      const double needed =
          kSample + kLetter * static_cast<double>(series->name.size());
      if (x > kLeft && x + needed > width - kRight) {
        x = kLeft;
        y += kLegendRow;
      }
      curve(*series, {{x, y - 4}, {x + kSample - 8, y - 4}},
            series->has_marks || !series->has_line
                ? std::vector<Point>{{x + kSample / 2 - 4, y - 4}}
                : std::vector<Point>());
      text(x + kSample, y, "class=\"name\"", series->name);
      x += needed + kGap;
    }
    return y;
  }

  const Chart& chart_;
  std::map<std::string, Look> looks_;
  std::vector<const Series*> named_;  // the first of each name
  std::ostringstream out_;
};

}  // namespace

std::string svg(const Chart& chart) { return Drawing(chart).drawn(); }

}  // namespace longspan::report
