// Plain text as Markdown that reads the same, also in a table.

#pragma once

#include <string>
#include <string_view>

namespace longspan::report {

std::string markdown(std::string_view text);
std::string code(std::string_view text);

// With a capital and a full stop.
std::string sentence(std::string_view text);

// With the numbers of arXiv as links.
std::string with_links(std::string_view text);

}  // namespace longspan::report
