#include "longspan/data/word_counts.h"

#include <algorithm>

namespace longspan {

void WordCounts::add(std::string_view word) {
  const auto found = counts_.find(word);
  if (found != counts_.end())
    ++found->second;
  else
    counts_.emplace(word, 1);
}

std::vector<std::string> WordCounts::commonest(int64_t least_count,
                                               int64_t most) const {
  std::vector<std::pair<int64_t, std::string>> order;  // rarer is larger
  for (const auto& [word, count] : counts_)
    if (count >= least_count) order.emplace_back(-count, word);
  std::ranges::sort(order);
  std::vector<std::string> words;
  for (auto& [count, word] : order)
    if (std::ssize(words) < most) words.push_back(std::move(word));
  return words;
}

}  // namespace longspan
