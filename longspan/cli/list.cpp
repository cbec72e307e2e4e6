#include <iomanip>
#include <iostream>
#include <memory>

#include "longspan/cli/commands.h"
#include "longspan/cli/row.h"
#include "longspan/report/markdown.h"

namespace longspan::cli {
namespace {

constexpr std::string_view kColumns[] = {"name", "causal", "cross", "decode",
                                         "time", "memory", "seam",  "what it is"};

std::vector<std::string> cells(const Mechanism& mechanism) {
  const auto yes = [](bool able) { return able ? "yes" : "no"; };
  return {std::string(mechanism.name),
          std::string(name(mechanism.can.causal)),
          yes(mechanism.can.cross),
          yes(mechanism.can.decoding),
          std::string(mechanism.time.formula),
          std::string(mechanism.memory.formula),
          std::string(mechanism.seam()),
          std::string(mechanism.summary)};
}

void print_table() {
  std::vector<std::vector<std::string>> rows = {
      {std::begin(kColumns), std::end(kColumns)}};
  for (const Mechanism* mechanism : mechanisms()) rows.push_back(cells(*mechanism));
  std::vector<size_t> widths(std::size(kColumns));
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i)
      std::cout << std::left << std::setw(static_cast<int>(widths[i]) + 2) << row[i];
    std::cout << row.back() << '\n';
  }
}

void print_markdown() {
  std::cout << '|';
  for (const auto& column : kColumns) std::cout << ' ' << column << " |";
  std::cout << "\n|";
  for (size_t i = 0; i < std::size(kColumns); ++i) std::cout << " --- |";
  std::cout << '\n';
  for (const Mechanism* mechanism : mechanisms()) {
    std::cout << '|';
    const auto texts = cells(*mechanism);
    for (size_t i = 0; i < texts.size(); ++i) {
      const bool formula = kColumns[i] == "time" || kColumns[i] == "memory";
      std::cout << ' ' << (formula ? report::code(texts[i]) : texts[i]) << " |";
    }
    std::cout << '\n';
  }
}

void print_json() {
  auto rows = nlohmann::ordered_json::array();
  for (const Mechanism* mechanism : mechanisms()) rows.push_back(json(*mechanism));
  std::cout << rows.dump(2) << '\n';
}

}  // namespace

void add_list(CLI::App& program) {
  auto* const verb = program.add_subcommand("list", "the mechanisms there are");
  const auto as_json = std::make_shared<bool>(false);
  const auto as_markdown = std::make_shared<bool>(false);
  auto* const json_flag =
      verb->add_flag("--json", *as_json, "every field of every row, as JSON");
  verb->add_flag("--markdown", *as_markdown, "the table in Markdown")
      ->excludes(json_flag);
  verb->callback([=] {
    if (*as_json)
      print_json();
    else if (*as_markdown)
      print_markdown();
    else
      print_table();
  });
}

}  // namespace longspan::cli
