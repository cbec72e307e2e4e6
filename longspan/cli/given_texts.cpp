#include "longspan/cli/given_texts.h"

#include <iostream>
#include <sstream>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"
#include "longspan/data/table.h"

namespace longspan::cli {

GivenTexts::GivenTexts(CLI::App& verb) : verb_(verb) {
  verb.allow_extras();
  verb.add_option("--file", file_,
                  "a .tsv, .csv or .jsonl file with the column of texts, or one text a "
                  "line; - is standard input");
}

void GivenTexts::check() const {
  std::vector<std::string> known;
  for (const auto* option : verb_.get_options())
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  const auto texts = verb_.remaining();
  for (const std::string& text : texts)
    if (text.starts_with("--"))
      throw UsageError("no option " + text + hint(text, known));
  if (!texts.empty() && !file_.empty())
    throw UsageError("give texts or --file, not both; got '" + texts.front() +
                     "' and " + file_);
}

std::vector<std::string> GivenTexts::read(const TrainedModel& trained) const {
  std::vector<std::string> texts = verb_.remaining();
  if (!texts.empty()) return texts;
  const auto lines = [&](std::istream& in) {
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      texts.push_back(line);
    }
  };
  if (file_.empty() || file_ == "-") {
    lines(std::cin);
  } else if (file_.ends_with(".tsv") || file_.ends_with(".csv") ||
             file_.ends_with(".jsonl")) {
    for (const auto& row :
         read_table(file_, {.text = trained.task.text_column, .labels = false}))
      texts.push_back(row.text);
  } else {
    std::istringstream in(read_file(file_));
    lines(in);
  }
  require(!texts.empty(), "there is no text; give it as an argument, by --file or on ",
          "standard input, one a line");
  return texts;
}

}  // namespace longspan::cli
