#include "longspan/report/page.h"

#include <cctype>
#include <sstream>

#include "longspan/base/build.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --text: #24292f; --soft: #57606a; --ground: #fff;
  --raised: #f6f8fa; --line: #d8dee4; --accent: #0067b0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --soft: #a0a8b3; --ground: #16181d; --raised: #1f232b;
    --line: #363b44; --accent: #58b4f0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 84rem; color: var(--text);
  background: var(--ground); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .6rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .4rem 0; max-width: 60rem; }
a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .9rem 0 0; }
nav:empty { display: none; }
.soft, figcaption, footer { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; margin: .6rem 0; width: fit-content; max-width: 100%; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: .9rem 0 1.1rem; }
.card { flex: 1 1 12rem; max-width: 20rem; padding: .6rem .9rem .7rem;
  border: 1px solid var(--line); border-radius: 8px; background: var(--raised); }
.card span { display: block; color: var(--soft); font-size: .85rem; }
.card b { display: block; font-size: 1.1rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .93rem; }
th, td { padding: .32rem .48rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); vertical-align: top; }
td.long, tfoot th { white-space: normal; overflow-wrap: anywhere; }
thead th { background: var(--raised); font-weight: 600; white-space: normal;
  vertical-align: bottom; }
tbody th, tfoot th { font-weight: 500; }
tfoot { color: var(--soft); }
tfoot th { min-width: 10.5rem; font-size: .9em; }
.number { text-align: right; }
tbody tr:hover { background: var(--raised); }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; text-align: inherit; }
th[aria-sort=ascending] button::after { content: " \25b2"; }
th[aria-sort=descending] button::after { content: " \25bc"; }
figure { margin: .8rem 0; }
figure svg, figure img { max-width: 100%; height: auto; }
.gallery { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.gallery figure { margin: 0; }
footer { margin-top: 3rem; }
)css";

// Sorts a table by the column whose title was chosen; numbers the greatest first.
constexpr const char* kScript = R"js(
for (const button of document.querySelectorAll("table.sortable thead button")) {
  button.addEventListener("click", () => {
    const title = button.parentElement, table = title.closest("table");
    const column = title.cellIndex, body = table.tBodies[0];
    const numeric = title.classList.contains("number");
    const before = title.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : numeric;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      if (!numeric) return cell.textContent;
      return "number" in cell.dataset ? Number(cell.dataset.number) : NaN;
    };
    const compare = (a, b) => {
      const x = key(a), y = key(b);
      if (!numeric) return descending ? y.localeCompare(x) : x.localeCompare(y);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return descending ? y - x : x - y;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
)js";

// "Wide against deep" -> "wide-against-deep", behind the name of the group.
std::string anchor(const Section& section) {
  std::string name;
  for (const char letter :
       section.group + (section.group.empty() ? "" : "-") + section.title) {
    const auto byte = static_cast<unsigned char>(letter);
    name += std::isalnum(byte) ? static_cast<char>(std::tolower(byte)) : '-';
  }
  return name;
}

}  // namespace

std::string html(const Page& page) {
  std::ostringstream out;
  out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      << "<title>" << escaped(page.title) << "</title>\n"
      << "<link rel=\"icon\" href=\"data:,\">\n"
      << "<style>" << kStyle << page.style
      << "</style>\n</head>\n<body>\n<header>\n<h1>" << escaped(page.title) << "</h1>\n"
      << page.lead;
  if (page.sections.size() > 2) {
    std::string group;
    out << "<nav>";
    for (const Section& section : page.sections) {
      if (section.group != group)
        out << "</nav>\n<nav><b>" << escaped(group = section.group) << "</b>";
      out << "<a href=\"#" << anchor(section) << "\">" << escaped(section.title)
          << "</a>";
    }
    out << "</nav>\n";
  }
  out << "</header>\n<main>\n";
  for (const Section& section : page.sections)
    out << "<section>\n<h2 id=\"" << anchor(section) << "\">" << escaped(section.group)
        << (section.group.empty() ? "" : ": ") << escaped(section.title) << "</h2>\n"
        << section.html << "</section>\n";
  out << "</main>\n<footer>Written by longspan " << kVersion << ".</footer>\n<script>"
      << kScript << "</script>\n</body>\n</html>\n";
  return out.str();
}

std::string paragraph(std::string_view text) {
  return "<p>" + escaped(text) + "</p>\n";
}

std::string html_of(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string out = "<div class=\"wide\"><table>\n";
  for (const auto& [name, value] : facts)
    out += "<tr><th scope=\"row\">" + escaped(name) + "</th><td class=\"long\">" +
           escaped(value) + "</td></tr>\n";
  return out + "</table></div>\n";
}

std::string embedded(std::string_view svg, std::string_view description) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string address = "data:image/svg+xml,";
  for (const char letter : svg) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) ||
        std::string_view("-_.:/=;,()'").find(letter) != std::string_view::npos) {
      address += letter;
    } else {
      address += '%';
      address += kDigits[byte >> 4];
      address += kDigits[byte & 15];
    }
  }
  return "<img src=\"" + address + "\" alt=\"" + escaped(description) + "\">";
}

}  // namespace longspan::report
