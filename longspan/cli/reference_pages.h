// Reference pages in Markdown: the catalogue, to be read.

#pragma once

#include <string>

namespace longspan::cli {

// Writes for every mechanism NAME.md, its pictures NAME.svg and, where it may be causal
// or not, NAME-causal.svg; and README.md, the table of them. Makes the folder, and
// leaves other files in it alone. Returns how many files.
int64_t write_reference_pages(const std::string& folder);

}  // namespace longspan::cli
