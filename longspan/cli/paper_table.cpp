#include "longspan/cli/paper_table.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <sstream>

namespace longspan::cli {

std::string cell(std::optional<double> value, int digits) {
  if (!value) return "-";
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << *value;
  return text.str();
}

nlohmann::ordered_json or_null(std::optional<double> value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

void print_table(const TextTable& lines, size_t words) {
  std::vector<size_t> widths;
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) {
      widths.resize(std::max(widths.size(), i + 1));
      widths[i] = std::max(widths[i], line[i].size());
    }
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i)
      std::cout << (i == 0 ? "" : "  ") << (i < words ? std::left : std::right)
                << std::setw(static_cast<int>(widths[i])) << line[i];
    std::cout << '\n';
  }
}

}  // namespace longspan::cli
