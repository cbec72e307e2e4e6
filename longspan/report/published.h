// Results of papers, to stand beside ours.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/train/experiment.h"

namespace longspan::report {

// What the Long Range Arena calls its tasks, in the order of its table. Pathfinder is
// that of 32 x 32 pixels; the Arena does not say how hard, later work takes hard.
// Path-X is the hard one of 128 x 128.
inline constexpr std::string_view kArenaTasks[] = {"ListOps", "Text",       "Retrieval",
                                                   "Image",   "Pathfinder", "Path-X"};
// And others that papers have: reviews in words, and easier images.
inline constexpr std::string_view kTextInWords = "Text in words",
                                  kEasierPathfinder = "Pathfinder, intermediate";

struct Published {
  std::string_view mechanism;  // our name of it; "grc bigbird": grc beside bigbird
  std::string_view task;
  double accuracy;  // in percent; 0: not printed
};

struct Source {
  std::string_view name;   // of a column
  std::string_view paper;  // with its settings
  std::span<const Published> numbers;
};

// The first is the Long Range Arena's own table.
std::span<const Source> published();

std::optional<double> printed(const Source& source, std::string_view mechanism,
                              std::string_view task);

// Beside which published numbers a run may stand.
struct Place {
  std::string mechanism, task;
  std::string reason = {};  // why beside none
};

// By its options, and by the facts of its result.
Place place_of(const Experiment& experiment, const std::vector<std::string>& facts);

}  // namespace longspan::report
