#include "longspan/report/draw_pairs.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

using torch::Tensor;

constexpr int64_t kMargin = 16, kLine = 16;  // in pixels
constexpr int64_t kPanelsInARow = 4;

// In the order of Sees.
struct Look {
  const char* colour;
  const char* words;
};
constexpr Look kLooks[] = {{"#ececec", "not seen"},
                           {"#0b4f8a", "seen directly"},
                           {"#f0b429", "seen in a summary"},
                           {"#2a9d6f", "seen through memory"}};

// Rows or columns: cells of the memory, a gap as wide as a cell, cells of tokens.
struct Axis {
  int64_t memory = 0, count = 0;

  int64_t place(int64_t i) const { return i + (memory > 0 && i >= memory ? 1 : 0); }
  int64_t length() const { return place(count - 1) + 1; }
  int64_t tokens() const { return count - memory; }
};

std::vector<int64_t> ticks(int64_t tokens) {
  int64_t step = 1;
  while (tokens > 8 * step) step *= 2;
  std::vector<int64_t> at;
  for (int64_t token = 0; token < tokens; token += step) at.push_back(token);
  return at;
}

// The cells of a panel, a path a colour, in units of a cell. A rectangle is a run of
// equal cells in a row, and the same run in the rows below.
std::string cells(const Tensor& pairs, const Axis& rows, const Axis& columns) {
  using Run = std::array<int64_t, 3>;  // of which kind, from where, how many
  std::map<int64_t, std::ostringstream> paths;
  std::map<Run, int64_t> open;  // with their first rows
  const auto close = [&](const Run& run, int64_t first, int64_t end) {
    const auto [kind, from, count] = run;
    paths[kind] << 'M' << columns.place(from) << ' ' << rows.place(first) << 'h'
                << count << 'v' << end - first << "h-" << count << 'z';
  };
  const auto seen = pairs.accessor<uint8_t, 2>();
  for (int64_t row = 0; row <= rows.count; ++row) {
    std::map<Run, int64_t> now;
    for (int64_t from = 0; row < rows.count && from < columns.count;) {
      int64_t to = from + 1;
      while (to < columns.count && to != columns.memory &&
             seen[row][to] == seen[row][from])
        ++to;
      const Run run = {seen[row][from], from, to - from};
      const auto above = row == rows.memory ? open.end() : open.find(run);
      now.emplace(run, above == open.end() ? row : above->second);
      from = to;
    }
    for (const auto& [run, first] : open)
      if (const auto same = now.find(run); same == now.end() || same->second != first)
        close(run, first, row);
    open = std::move(now);
  }
  std::ostringstream svg;
  for (const auto& [kind, path] : paths)
    svg << "<path fill=\"" << kLooks[kind].colour << "\" d=\"" << path.str()
        << "\"/>\n";
  return svg.str();
}

// White lines between cells.
std::string grid(const Axis& rows, const Axis& columns) {
  std::ostringstream path;
  for (int64_t i = 1; i < rows.length(); ++i)
    path << "M0 " << i << 'h' << columns.length();
  for (int64_t i = 1; i < columns.length(); ++i)
    path << 'M' << i << " 0v" << rows.length();
  return "<path stroke=\"#fff\" stroke-width=\".1\" d=\"" + path.str() + "\"/>\n";
}

class Canvas {
 public:
  explicit Canvas(const PatternDrawing& drawing)
      : drawing_(drawing),
        rows_{drawing.memory_rows, drawing.panels[0].pairs.size(0)},
        columns_{drawing.memory_columns, drawing.panels[0].pairs.size(1)} {
    const auto count = static_cast<int64_t>(drawing.panels.size());
    const int64_t size = count > 1 ? 160 : 256;
    cell_ =
        std::clamp<int64_t>(size / std::max(rows_.length(), columns_.length()), 2, 16);
    across_ = std::min(count, kPanelsInARow);
    labelled_ = !drawing.panels[0].label.empty();
    // The names of the axes have room too.
    const auto size_of = [&](const Axis& axis) {
      return std::max({cell_ * axis.length(), int64_t{80},
                       static_cast<int64_t>(centre(axis)) + 4 * kLetter});
    };
    panel_width_ = kLeft + size_of(columns_);
    panel_height_ = top() + size_of(rows_) + kMargin;
    width_ = std::max(across_ * (panel_width_ + kMargin) + kMargin, int64_t{320});
  }

  std::string svg() const {
    std::string body = words(kMargin, kMargin + 12, drawing_.title,
                             " font-size=\"15\" font-weight=\"bold\"");
    int64_t y = kMargin + 12;
    for (const auto& line : lines_of(drawing_.settings, width_ - 2 * kMargin))
      body += words(kMargin, y += kLine, line);
    y += kMargin;
    for (size_t i = 0; i < drawing_.panels.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      body +=
          panel(drawing_.panels[i], kMargin + at % across_ * (panel_width_ + kMargin),
                y + at / across_ * panel_height_);
    }
    const auto count = static_cast<int64_t>(drawing_.panels.size());
    y += (count + across_ - 1) / across_ * panel_height_;
    body += legend(y);
    std::ostringstream all;
    all << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width_ << ' '
        << y << "\" width=\"" << width_ << "\" height=\"" << y
        << "\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n<title>"
        << escaped(drawing_.title + ": who sees whom") << "</title>\n<rect width=\""
        << width_ << "\" height=\"" << y << "\" rx=\"6\" fill=\"#fff\"/>\n"
        << body << "</svg>\n";
    return all.str();
  }

 private:
  static constexpr int64_t kLeft = 46;  // of the cells: an axis' name, numbers
  int64_t top() const { return (labelled_ ? kLine : 0) + 2 * kLine; }

  // The middle of the `i`th row or column, from where the panel's cells begin.
  double middle(const Axis& axis, int64_t i) const {
    return (static_cast<double>(axis.place(i)) + 0.5) * static_cast<double>(cell_);
  }
  // Where the name of an axis is centred: over its tokens, behind the word "memory".
  double centre(const Axis& axis) const {
    if (axis.memory == 0) return middle(axis, 0) / 2 + middle(axis, axis.count - 1) / 2;
    const double tokens =
        (middle(axis, axis.memory) + middle(axis, axis.count - 1)) / 2;
    return std::max(tokens, 12.0 * kLetter);
  }

  std::string panel(const PatternPanel& panel, int64_t x, int64_t y) const {
    std::ostringstream svg;
    const int64_t left = x + kLeft, up = y + top();
    if (labelled_)
      svg << words(static_cast<double>(left), static_cast<double>(y + 8), panel.label,
                   " font-weight=\"bold\"");
    svg << name_columns(left, up) << name_rows(left, up);
    svg << "<g transform=\"translate(" << left << ' ' << up << ") scale(" << cell_
        << ")\">\n<g shape-rendering=\"crispEdges\">\n"
        << cells(panel.pairs, rows_, columns_) << "</g>\n";
    if (cell_ >= 4) svg << grid(rows_, columns_);
    svg << "</g>\n";
    return svg.str();
  }

  std::string name_columns(int64_t left, int64_t up) const {
    const auto x = static_cast<double>(left), y = static_cast<double>(up);
    std::string svg =
        words(x + centre(columns_), y - 18, "keys", " text-anchor=\"middle\"");
    if (columns_.memory > 0) svg += words(x, y - 18, "memory");
    for (const int64_t token : ticks(columns_.tokens()))
      svg += words(x + middle(columns_, columns_.memory + token), y - 4,
                   std::to_string(token), " font-size=\"10\" text-anchor=\"middle\"");
    return svg;
  }

  std::string name_rows(int64_t left, int64_t up) const {
    const auto x = static_cast<double>(left), y = static_cast<double>(up);
    // Where rows are not the tokens, they are what comes out of them.
    const bool equal = rows_.tokens() == columns_.tokens();
    std::string svg =
        upward(x - 32, y + centre(rows_), equal ? "queries" : "outputs", "middle");
    if (rows_.memory > 0) svg += upward(x - 32, y, "memory", "end");
    for (const int64_t token : ticks(rows_.tokens()))
      svg += words(x - 4, y + middle(rows_, rows_.memory + token) + 4,
                   std::to_string(token), " font-size=\"10\" text-anchor=\"end\"");
    return svg;
  }

  // What the colours mean, of those there are; `y` moves below it.
  std::string legend(int64_t& y) const {
    std::ostringstream svg;
    int64_t x = kMargin;
    for (const int kind : {1, 2, 3, 0}) {
      const auto is_there = [&](const PatternPanel& panel) {
        return panel.pairs.eq(kind).any().item<bool>();
      };
      if (std::ranges::none_of(drawing_.panels, is_there)) continue;
      const std::string meaning =
          kind == 1 && drawing_.by_gradients ? "seen" : kLooks[kind].words;
      const int64_t length = 20 + kLetter * static_cast<int64_t>(meaning.size());
      if (x > kMargin && x + length > width_ - kMargin) x = kMargin, y += kLine + 2;
      svg << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"12\" height=\"12\""
          << " fill=\"" << kLooks[kind].colour << "\"/>\n"
          << words(static_cast<double>(x + 18), static_cast<double>(y + 10), meaning);
      x += length + kMargin;
    }
    y += 12 + kMargin;
    return svg.str();
  }

  const PatternDrawing& drawing_;
  Axis rows_, columns_;
  int64_t cell_ = 0, across_ = 0, panel_width_ = 0, panel_height_ = 0, width_ = 0;
  bool labelled_ = false;
};

}  // namespace

std::string draw(const PatternDrawing& drawing) { return Canvas(drawing).svg(); }

}  // namespace longspan::report
