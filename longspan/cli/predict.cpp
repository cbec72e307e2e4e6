#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "longspan/base/read_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/data/table.h"
#include "longspan/train/experiment.h"

namespace longspan::cli {
namespace {

struct PredictOptions {
  std::string run, checkpoint = "best", file, device;
  std::vector<std::string> texts;
};

// The texts of the command line, of a file, or of standard input, one a line.
std::vector<std::string> texts_of(const PredictOptions& options,
                                  const TrainedModel& trained) {
  if (!options.texts.empty()) return options.texts;
  std::vector<std::string> texts;
  const auto lines = [&](std::istream& in) {
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      texts.push_back(line);
    }
  };
  const std::string& file = options.file;
  if (file.empty() || file == "-") {
    lines(std::cin);
  } else if (!trained.task.text_column.empty() &&
             (file.ends_with(".tsv") || file.ends_with(".csv") ||
              file.ends_with(".jsonl"))) {
    for (const auto& row :
         read_table(file, {.text = trained.task.text_column, .labels = false}))
      texts.push_back(row.text);
  } else {
    std::istringstream in(read_file(file));
    lines(in);
  }
  require(!texts.empty(), "there is no text to predict; give it as an argument, by ",
          "--file or on standard input, one a line");
  return texts;
}

void predict(const PredictOptions& options) {
  TrainedModel trained = open_run(options.run, options.checkpoint, options.device);
  const auto texts = texts_of(options, trained);
  const auto answers = trained.predict(texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    nlohmann::ordered_json line = {{"text", texts[i]}};
    const auto& shares = answers[i].probabilities;
    const auto best = std::ranges::max_element(shares) - shares.begin();
    line["label"] = trained.task.labels[static_cast<size_t>(best)];
    for (size_t label = 0; label < shares.size(); ++label)
      line["probabilities"][trained.task.labels[label]] = shares[label];
    if (answers[i].cut) line["cut_at"] = trained.task.longest;
    std::cout << line.dump(-1, ' ', false,
                           nlohmann::ordered_json::error_handler_t::replace)
              << '\n';
  }
}

}  // namespace

void add_predict(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "predict", "labels new texts: a line of JSON each, with all probabilities");
  verb->footer(
      "Examples:\n"
      "  longspan predict runs/mine \"a text\" \"another\"\n"
      "  longspan predict runs/mine --file new.tsv      # its column of texts\n"
      "  longspan predict runs/small < expressions.txt  # one a line");
  const auto options = std::make_shared<PredictOptions>();
  verb->add_option("run", options->run, "the folder of the run")->required();
  // Not an option: CLI11 would make a list of a text in brackets.
  verb->allow_extras();
  verb->add_option(
      "--file", options->file,
      "a .tsv, .csv or .jsonl file with the column of texts, or one text a "
      "line; - is standard input");
  verb->add_option("--checkpoint", options->checkpoint,
                   "best, last, or the folder of one")
      ->capture_default_str();
  verb->add_option("--device", options->device, "cpu or cuda, if not as trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(*verb);
  verb->callback([=] {
    for (const std::string& text : verb->remaining()) {
      if (text.starts_with("--"))
        throw UsageError(
            "no option " + text +
            hint(text, {"--file", "--checkpoint", "--device", "--threads"}));
      options->texts.push_back(text);
    }
    if (!options->texts.empty() && !options->file.empty())
      throw UsageError("give texts or --file, not both; got '" +
                       options->texts.front() + "' and " + options->file);
    predict(*options);
  });
}

}  // namespace longspan::cli
