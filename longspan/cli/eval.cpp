#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "longspan/cli/commands.h"
#include "longspan/cli/score_table.h"
#include "longspan/train/experiment.h"

namespace longspan::cli {
namespace {

struct EvalOptions {
  std::string run, checkpoint = "best", split = "test", file, data, device;
  int64_t batch = 16, samples = 0, context = -1;
  bool json = false;
};

void evaluate(const EvalOptions& options) {
  TrainedModel trained = open_run(options.run, options.checkpoint, options.device);
  TaskOptions& from = trained.experiment.task;
  if (!options.data.empty()) from.data = options.data;
  if (options.context >= 0) from.context = options.context;
  Task task = trained.task;
  if (options.file.empty()) {
    task = open_task(from);
    const bool same = task.saved_labels == trained.task.saved_labels &&
                      task.saved_vocabulary == trained.task.saved_vocabulary &&
                      task.split("train").fingerprint() == trained.data;
    require(same, options.run,
            ": the training file has changed since; judge on a file ",
            "of its own by --file");
  } else {
    read_test(task, from, options.file);
  }
  const std::string split = options.file.empty() ? options.split : "test";
  const auto objective = trained.model.objective(task);
  const Dataset& examples = task.split(split);
  const Score result = *score(*objective, examples,
                              {.batch = options.batch,
                               .device = device_of(trained.experiment.train),
                               .samples = options.samples,
                               .carry = &trained.carry});
  const Measures measures = objective->measures(examples, result);
  if (options.json) {
    nlohmann::ordered_json json = {
        {"checkpoint", trained.checkpoint},
        {"split", options.file.empty() ? split : options.file},
        {"accuracy", result.accuracy},
        {"loss", result.loss},
        {"answers", result.answers},
        {"cut", examples.cut()}};
    for (const auto& [name, value] : measures) json[name] = value;
    std::cout << json.dump() << '\n';
    return;
  }
  // The guesses are judged on the test set alone.
  const bool judged = options.file.empty() && split == "test";
  print_scores("right on " + (options.file.empty() ? split : options.file), result,
               measures, judged ? task.references : std::vector<Reference>{});
  if (examples.cut() > 0)
    std::cout << examples.cut() << " of them were cut at " << task.longest
              << " tokens\n";
}

}  // namespace

void add_eval(CLI::App& program) {
  auto* const verb = program.add_subcommand("eval", "judges a trained model");
  verb->footer(
      "Examples:\n"
      "  longspan eval runs/small                       # best checkpoint, test set\n"
      "  longspan eval runs/small --split valid --checkpoint last\n"
      "  longspan eval runs/mine --file new.tsv --json");
  const auto options = std::make_shared<EvalOptions>();
  verb->add_option("run", options->run, "the folder of the run")->required();
  verb->add_option("--checkpoint", options->checkpoint,
                   "best, last, or the folder of one")
      ->capture_default_str();
  verb->add_option("--split", options->split, "train, valid or test")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "valid", "test"}));
  verb->add_option("--file", options->file, "a file of examples instead of the task's");
  verb->add_option("--data", options->data, "where the task's files are now");
  verb->add_option("--device", options->device, "cpu or cuda, if not as trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_option("--batch", options->batch, "examples at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--samples", options->samples,
                   "the mean of the probabilities of so many passes, for mechanisms "
                   "that draw the keys they meet (ssa); 0: one pass that meets all")
      ->capture_default_str()
      ->check(CLI::Range(0, 10000));
  verb->add_option("--context", options->context,
                   "of a text: windows begin with so many tokens of the one before, of "
                   "which nothing is asked; else as trained")
      ->check(CLI::Range(0, 1 << 30));
  verb->add_flag("--json", options->json, "one line of JSON");
  add_threads(*verb);
  verb->callback([=] { evaluate(*options); });
}

}  // namespace longspan::cli
