#include "longspan/base/words.h"

#include <algorithm>
#include <numeric>

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

std::string hint(std::string_view unknown, const std::vector<std::string>& known) {
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
  const std::string question = best ? "; did you mean '" + *best + "'?" : "";
  if (known.empty()) return question + "; there are none";
  return question + (best ? " there are: " : "; there are: ") + joined(known);
}

}  // namespace longspan
