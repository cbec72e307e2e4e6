#include "longspan/data/made_text.h"

#include <span>
#include <string_view>

#include "longspan/data/random_words.h"

namespace longspan {
namespace {

constexpr std::string_view kNames[] = {"Ada",   "Boris", "Clara", "Daniel", "Edith",
                                       "Felix", "Greta", "Hugo",  "Irene",  "Jonas"};
constexpr std::string_view kThings[] = {
    "river", "stone", "house", "garden", "letter", "lamp",  "bridge", "boat",
    "tree",  "road",  "bell",  "clock",  "window", "field", "storm",  "book"};
constexpr std::string_view kQualities[] = {"old",   "small", "bright", "quiet",
                                           "heavy", "green", "broken", "distant"};
constexpr std::string_view kDeeds[] = {"saw",     "found",  "painted", "left",
                                       "carried", "wanted", "forgot",  "repaired"};
constexpr std::string_view kPlaces[] = {"near", "behind", "under", "beside"};

// The first of a list come more often.
std::string_view choose(std::span<const std::string_view> list, RandomWords& random) {
  const uint32_t most = 1 + random.below(static_cast<uint32_t>(list.size()));
  return list[random.below(most)];
}

void add_sentence(std::string& text, std::string_view name, RandomWords& random) {
  text.append(name).append(" ").append(choose(kDeeds, random)).append(" the ");
  if (random.below(2) == 0) text.append(choose(kQualities, random)).append(" ");
  text.append(choose(kThings, random));
  if (random.below(2) == 0) {
    text.append(" ").append(choose(kPlaces, random)).append(" the ");
    text.append(choose(kThings, random));
  }
  text.append(".");
}

}  // namespace

std::string make_text(int64_t size, uint64_t seed) {
  RandomWords random(Key{seed});
  std::string text;
  while (std::ssize(text) < size) {
    const std::string_view name = choose(kNames, random);
    const uint32_t sentences = 3 + random.below(6);
    for (uint32_t i = 0; i < sentences; ++i) {
      if (i > 0) text += ' ';
      add_sentence(text, name, random);
    }
    text += '\n';
  }
  return text;
}

}  // namespace longspan
