#include <algorithm>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "longspan/cli/commands.h"
#include "longspan/cli/given_texts.h"
#include "longspan/train/experiment.h"

namespace longspan::cli {
namespace {

struct PredictOptions {
  std::string run, checkpoint = "best", device;
};

void predict(const PredictOptions& options, const GivenTexts& given) {
  given.check();
  TrainedModel trained = open_run(options.run, options.checkpoint, options.device);
  const auto texts = given.read(trained);
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
  const auto texts = std::make_shared<GivenTexts>(*verb);
  verb->add_option("--checkpoint", options->checkpoint,
                   "best, last, or the folder of one")
      ->capture_default_str();
  verb->add_option("--device", options->device, "cpu or cuda, if not as trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(*verb);
  verb->callback([=] { predict(*options, *texts); });
}

}  // namespace longspan::cli
