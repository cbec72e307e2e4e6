#include "longspan/cli/given_texts.h"

#include <iostream>
#include <sstream>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"
#include "longspan/data/table.h"

namespace longspan::cli {
namespace {

std::vector<std::string> lines_of(std::istream& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

void GivenTexts::add_to(CLI::App& verb, const std::string& called) {
  called_ = called;
  // Not an option: CLI11 would make a list of a text in brackets.
  verb.allow_extras();
  verb.add_option("--file", file_,
                  "a .tsv, .csv or .jsonl file with the column of " + called +
                      ", or one a line; - is standard input");
}

void GivenTexts::take_from(const CLI::App& verb) {
  std::vector<std::string> options;
  for (const auto* option : verb.get_options())
    for (const auto& name : option->get_lnames()) options.push_back("--" + name);
  for (const std::string& text : verb.remaining()) {
    if (text.starts_with("--"))
      throw UsageError("no option " + text + hint(text, options));
    texts_.push_back(text);
  }
  if (!texts_.empty() && !file_.empty())
    throw UsageError("give " + called_ + " or --file, not both; got '" +
                     texts_.front() + "' and " + file_);
}

std::vector<std::string> GivenTexts::read_standard_input() const {
  return lines_of(std::cin);
}

std::vector<std::string> GivenTexts::read(const std::string& column) const {
  if (!texts_.empty()) return texts_;
  if (file_ == "-") return read_standard_input();
  const bool table =
      file_.ends_with(".tsv") || file_.ends_with(".csv") || file_.ends_with(".jsonl");
  if (table && !column.empty()) {
    std::vector<std::string> texts;
    for (const auto& row : read_table(file_, {.text = column, .labels = false}))
      texts.push_back(row.text);
    return texts;
  }
  std::istringstream in(read_file(file_));
  return lines_of(in);
}

}  // namespace longspan::cli
