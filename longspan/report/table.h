// Tables that become HTML, Markdown or CSV.

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace longspan::report {

enum class Best : uint8_t { none, least, most };

struct Column {
  std::string title = {};
  std::string help = {};   // shown when the title is pointed at
  Best best = Best::none;  // of the numbers, which is marked
};

struct Cell {
  std::string text = {};
  std::optional<double> number = {};  // what it is sorted by; none: the text
};

using Row = std::vector<Cell>;

struct Table {
  std::vector<Column> columns = {};
  std::vector<Row> rows = {};
  std::vector<Row> foot = {};  // stays below, however it is sorted; may be shorter
};

// Sorted by a column when its title is chosen, where the page runs scripts.
std::string as_html(const Table& table);
// With columns of one width, so that it can be read as it is.
std::string as_markdown(const Table& table);
std::string as_csv(const Table& table);

// A cell of a number as text.
Cell number_cell(double number, const std::string& text);

}  // namespace longspan::report
