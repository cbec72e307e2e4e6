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
  std::string run, checkpoint = "best", device, mask = "[MASK]";
  int64_t guesses = 5;
  GivenTexts given;
};

void print(const nlohmann::ordered_json& line) {
  std::cout << line.dump(-1, ' ', false,
                         nlohmann::ordered_json::error_handler_t::replace)
            << '\n';
}

void print_labels(TrainedModel& trained, const std::vector<std::string>& texts) {
  const auto answers = trained.predict(texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    nlohmann::ordered_json line = {{"text", texts[i]}};
    const auto& shares = answers[i].probabilities;
    const auto best = std::ranges::max_element(shares) - shares.begin();
    line["label"] = trained.task.labels[static_cast<size_t>(best)];
    for (size_t label = 0; label < shares.size(); ++label)
      line["probabilities"][trained.task.labels[label]] = shares[label];
    if (answers[i].cut) line["cut_at"] = trained.task.longest;
    print(line);
  }
}

void print_masks(TrainedModel& trained, const std::vector<std::string>& texts,
                 const PredictOptions& options) {
  const auto answers = trained.fill(texts, options.mask, options.guesses);
  for (size_t i = 0; i < texts.size(); ++i) {
    nlohmann::ordered_json line = {{"text", texts[i]}, {"filled", answers[i].text}};
    line["masks"] = nlohmann::ordered_json::array();
    for (const auto& guesses : answers[i].masks) {
      auto& place = line["masks"].emplace_back(nlohmann::ordered_json::array());
      for (const auto& [text, probability] : guesses)
        place.push_back({{"token", text}, {"probability", probability}});
    }
    print(line);
  }
}

void predict(const PredictOptions& options) {
  TrainedModel trained = open_run(options.run, options.checkpoint, options.device);
  const auto texts = options.given.none()
                         ? options.given.read_standard_input()
                         : options.given.read(trained.task.text_column);
  require(!texts.empty(), "there is no text to predict; give it as an argument, by ",
          "--file or on standard input, one a line");
  if (trained.task.goal == Goal::masked_tokens)
    print_masks(trained, texts, options);
  else
    print_labels(trained, texts);
}

}  // namespace

void add_predict(CLI::App& program) {
  auto* const verb = program.add_subcommand("predict",
                                            "labels new texts, or fills their masks: a "
                                            "line of JSON each, with probabilities");
  verb->footer(
      "Examples:\n"
      "  longspan predict runs/mine \"a text\" \"another\"\n"
      "  longspan predict runs/mine --file new.tsv      # its column of texts\n"
      "  longspan predict runs/small < expressions.txt  # one a line\n"
      "  longspan predict runs/masked \"the cat [MASK] on the mat\"");
  const auto options = std::make_shared<PredictOptions>();
  verb->add_option("run", options->run, "the folder of the run")->required();
  options->given.add_to(*verb, "texts");
  verb->add_option("--mask", options->mask,
                   "what stands for a hidden token, where the model fills masks")
      ->capture_default_str();
  verb->add_option("--guesses", options->guesses, "the likeliest tokens for each mask")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--checkpoint", options->checkpoint,
                   "best, last, or the folder of one")
      ->capture_default_str();
  verb->add_option("--device", options->device, "cpu or cuda, if not as trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(*verb);
  verb->callback([=] {
    options->given.take_from(*verb);
    if (options->mask.empty()) throw UsageError("--mask must be a text, got ''");
    predict(*options);
  });
}

}  // namespace longspan::cli
