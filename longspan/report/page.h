// Pages of HTML that need no other file, for dark and for light screens.

#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::report {

struct Section {
  std::string title = {};
  std::string html = {};
  std::string group = {};  // stands before the title; sections of one are together
};

struct Page {
  std::string title = {};
  std::string lead = {};   // HTML, above the sections
  std::string style = {};  // CSS beside that of all pages
  std::vector<Section> sections = {};
};

std::string html(const Page& page);

// "<p>..</p>" of plain text.
std::string paragraph(std::string_view text);

// Names and what stands for them, in two columns.
std::string html_of(const std::vector<std::pair<std::string, std::string>>& facts);

// A picture with styles of its own, which those of the page do not touch.
std::string embedded(std::string_view svg, std::string_view description);

}  // namespace longspan::report
