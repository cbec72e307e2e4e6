#include "longspan/report/table.h"

#include <algorithm>
#include <sstream>

#include "longspan/report/markdown.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

// The number to be marked in each column, where there are several to choose from.
std::vector<std::optional<double>> best_of(const Table& table) {
  std::vector<std::optional<double>> best(table.columns.size());
  for (size_t i = 0; i < best.size(); ++i) {
    if (table.columns[i].best == Best::none || table.rows.size() < 2) continue;
    for (const Row& row : table.rows) {
      if (i >= row.size() || !row[i].number) continue;
      const double number = *row[i].number;
      const bool better =
          !best[i] ||
          (table.columns[i].best == Best::most ? number > *best[i] : number < *best[i]);
      if (better) best[i] = number;
    }
    if (std::ranges::all_of(table.rows, [&](const Row& row) {
          return i >= row.size() || !row[i].number || *row[i].number == best[i];
        }))
      best[i] = {};
  }
  return best;
}

// How many letters a text shows; other bytes of a letter in UTF-8 begin with 10.
size_t letters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  }));
}

bool is_numeric(const Table& table, size_t column) {
  return std::ranges::any_of(table.rows, [&](const Row& row) {
    return column < row.size() && row[column].number.has_value();
  });
}

}  // namespace

Cell number_cell(double number, const std::string& text) {
  return {.text = text, .number = number};
}

std::string as_html(const Table& table) {
  const auto best = best_of(table);
  std::ostringstream html;
  html.precision(17);
  const auto attribute = [&](size_t column) {
    return is_numeric(table, column) ? " class=\"number\"" : "";
  };
  html << "<div class=\"wide\"><table class=\"sortable\"><thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const auto& [title, help, direction] = table.columns[i];
    html << "<th scope=\"col\"" << attribute(i);
    if (!help.empty()) html << " title=\"" << escaped(help) << '"';
    html << "><button type=\"button\">" << escaped(title) << "</button></th>";
  }
  html << "</tr></thead>\n<tbody>\n";
  for (const Row& row : table.rows) {
    html << "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      html << (i == 0 ? "<th scope=\"row\"" : "<td") << attribute(i);
      if (row[i].number) html << " data-number=\"" << *row[i].number << '"';
      const bool is_best = row[i].number && best[i] && *row[i].number == *best[i];
      html << '>' << (is_best ? "<b>" : "") << escaped(row[i].text)
           << (is_best ? "</b>" : "") << (i == 0 ? "</th>" : "</td>");
    }
    html << "</tr>\n";
  }
  html << "</tbody>\n";
  if (!table.foot.empty()) html << "<tfoot>\n";
  for (const Row& row : table.foot) {
    html << "<tr>";
    for (size_t i = 0; i < table.columns.size(); ++i)
      html << (i == 0 ? "<th scope=\"row\"" : "<td") << attribute(i) << '>'
           << (i < row.size() ? escaped(row[i].text) : "")
           << (i == 0 ? "</th>" : "</td>");
    html << "</tr>\n";
  }
  if (!table.foot.empty()) html << "</tfoot>\n";
  html << "</table></div>\n";
  return html.str();
}

std::string as_markdown(const Table& table) {
  std::vector<size_t> widths(table.columns.size(), 3);
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : table.columns) lines[0].push_back(markdown(column.title));
  for (const auto* rows : {&table.rows, &table.foot})
    for (const Row& row : *rows) {
      lines.emplace_back();
      for (size_t i = 0; i < widths.size(); ++i)
        lines.back().push_back(i < row.size() ? markdown(row[i].text) : "");
    }
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], letters(line[i]));
  std::ostringstream text;
  for (size_t row = 0; row < lines.size(); ++row) {
    text << '|';
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string space(widths[i] - letters(lines[row][i]), ' ');
      text << ' '
           << (is_numeric(table, i) ? space + lines[row][i] : lines[row][i] + space)
           << " |";
    }
    text << '\n';
    if (row > 0) continue;
    text << '|';
    for (size_t i = 0; i < widths.size(); ++i)
      text << ' ' << std::string(widths[i] - 1, '-')
           << (is_numeric(table, i) ? ':' : '-') << " |";
    text << '\n';
  }
  return text.str();
}

std::string as_csv(const Table& table) {
  std::ostringstream text;
  const auto field = [&](const std::string& words) {
    if (words.find_first_of(",\"\r\n") == std::string::npos) {
      text << words;
      return;
    }
    text << '"';
    for (const char letter : words)
      text << (letter == '"' ? "\"\"" : std::string(1, letter));
    text << '"';
  };
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (i > 0) text << ',';
    field(table.columns[i].title);
  }
  text << '\n';
  for (const Row& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text << ',';
      field(row[i].text);
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace longspan::report
