#include "longspan/base/words.h"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <numeric>
#include <sstream>

namespace longspan {
namespace {

// How many letters to insert, delete, replace or swap with their neighbour to turn
// `a` into `b`.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min(
          {last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::string joined(const std::vector<std::string>& names, std::string_view separator) {
  std::string text;
  for (const auto& name : names) {
    if (!text.empty()) text += separator;
    text += name;
  }
  return text;
}

std::string nearest(std::string_view unknown, const std::vector<std::string>& known) {
  const size_t near = std::max<size_t>(1, unknown.size() / 3);
  const std::string* best = nullptr;
  size_t best_edits = near + 1;
  for (const auto& name : known) {
    const size_t distance = edits(unknown, name);
    if (distance < best_edits) {
      best = &name;
      best_edits = distance;
    }
  }
  return best ? *best : std::string();
}

std::string hint(std::string_view unknown, const std::vector<std::string>& known) {
  if (known.empty()) return "; there are none";
  const std::string meant = nearest(unknown, known);
  if (meant.empty()) return "; there are: " + joined(known);
  return "; did you mean '" + meant + "'? there are: " + joined(known);
}

std::vector<std::string> split_choices(std::string_view choices) {
  std::vector<std::string> words;
  while (!choices.empty()) {
    const size_t end = std::min(choices.find('|'), choices.size());
    words.emplace_back(choices.substr(0, end));
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return words;
}

std::string percent(double share) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << 100 * share << " %";
  return text.str();
}

// "1.2k", "3.4M"
std::string short_number(double number) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; number >= 1000 && unit + 1 < std::size(kUnits); ++unit) number /= 1000;
  std::ostringstream text;
  text << std::setprecision(3) << number << kUnits[unit];
  return text.str();
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds));
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600)
    return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) +
         " min";
}

}  // namespace longspan
