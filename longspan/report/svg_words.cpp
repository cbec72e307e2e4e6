#include "longspan/report/svg_words.h"

#include <algorithm>
#include <sstream>

namespace longspan::report {

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char letter : text) {
    switch (letter) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += letter;
    }
  }
  return safe;
}

std::string words(double x, double y, std::string_view text,
                  std::string_view attributes) {
  std::ostringstream svg;
  svg << "<text x=\"" << x << "\" y=\"" << y << '"' << attributes << '>'
      << escaped(text) << "</text>\n";
  return svg.str();
}

std::string upward(double x, double y, std::string_view text, const char* anchor) {
  std::ostringstream turn;
  turn << " text-anchor=\"" << anchor << "\" transform=\"rotate(-90 " << x << ' ' << y
       << ")\"";
  return words(x, y, text, turn.str());
}

std::vector<std::string> lines_of(const std::string& text, int64_t width) {
  std::vector<std::string> lines;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find(", ", from), text.size() - 1) + 1;
    const std::string part = text.substr(from, to - from);
    const auto fits = static_cast<size_t>(width / kLetter);
    if (lines.empty() || lines.back().size() + part.size() > fits)
      lines.push_back(part[0] == ' ' ? part.substr(1) : part);
    else
      lines.back() += part;
    from = to;
  }
  return lines;
}

}  // namespace longspan::report
