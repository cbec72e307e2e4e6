// Words of a text: looked up, and counted.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace longspan {

inline bool is_space(char byte) {
  return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

// Maps with words for keys, in which parts of a text are looked up.
struct HashWord : std::hash<std::string_view> {
  using is_transparent = void;
};
template <class Value>
using ByWord = std::unordered_map<std::string, Value, HashWord, std::equal_to<>>;

class WordCounts {
 public:
  void add(std::string_view word);

  // At most `most` of the words that came `least_count` times or more, the commonest
  // first, equally common ones in the order of their bytes.
  std::vector<std::string> commonest(int64_t least_count, int64_t most) const;

 private:
  ByWord<int64_t> counts_;
};

}  // namespace longspan
