// Results of papers, to stand beside ours.

#pragma once

#include <span>
#include <string_view>

namespace longspan::report {

struct Published {
  std::string_view mechanism;  // our name of it
  std::string_view task;
  double accuracy;  // in percent
};

struct Source {
  std::string_view name;   // of a column
  std::string_view paper;  // with its settings
  std::span<const Published> numbers;
};

std::span<const Source> published();

}  // namespace longspan::report
