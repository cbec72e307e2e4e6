#include <unistd.h>

#include <cmath>
#include <iostream>
#include <memory>

#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/experiment_options.h"
#include "longspan/cli/score_table.h"

namespace longspan::cli {
namespace {

void print(const RunResult& result, const std::string& folder) {
  const TrainResult& training = result.training;
  if (!training.best || !training.test) return;
  std::cout << joined(result.facts, "; ") << '\n'
            << result.parameters << " parameters, " << training.step << " steps, "
            << training.examples << " examples, " << std::lround(training.seconds)
            << " s\n"
            << "best by validation: step " << training.best->step << ", "
            << percent(training.best->score.accuracy) << " of "
            << training.best->score.answers << "\n\n";
  print_scores("right on the test set", *training.test, result.test, result.references);
  std::cout << "\nkept in " << folder << "; `longspan eval " << folder
            << "` and `longspan "
            << (result.goal == Goal::next_token ? "generate " : "predict ") << folder
            << "` use it\n";
}

}  // namespace

void add_train(CLI::App& program) {
  auto* const verb = program.add_subcommand("train", "trains a model");
  verb->footer(
      "Examples:\n"
      "  longspan train -c configs/listops-short.yaml --data short --out runs/small\n"
      "  longspan train --out runs/small --resume auto          # goes on after a "
      "stop\n"
      "  longspan train -c mine.yaml --out runs/wide --model.layers 1 --model.heads "
      "16\n"
      "  longspan train -c mine.yaml --dump-config              # every key, "
      "explained\n"
      "Any key of the configuration is an option. SIGINT and SIGTERM save and stop.");
  const auto options = std::make_shared<ExperimentOptions>(*verb);
  const auto run = std::make_shared<RunOptions>();
  verb->add_option("--out", run->folder, "the folder of the run");
  verb->add_option("--resume", run->resume,
                   "auto: go on from the newest whole checkpoint, or begin; or the "
                   "folder of a checkpoint");
  verb->add_flag("--quiet", run->quiet, "nothing on standard error but mistakes");
  verb->add_option("--at-once", run->at_once, "of an arena: its trainings at once")
      ->group("");  // not for people
  verb->callback([=] {
    const std::string stored = run->folder + "/config.yaml";
    const bool goes_on = !run->resume.empty() && !run->folder.empty() &&
                         access(stored.c_str(), F_OK) == 0;
    Experiment experiment = options->resolved(goes_on ? stored : "");
    if (options->dumped(fields(experiment))) return;
    if (run->folder.empty())
      throw UsageError("--out is required: the folder of the run");
    const RunResult result = run_experiment(experiment, *run);
    print(result, run->folder);
    constexpr int kBySignal = 128;
    if (result.training.signal != 0) throw Failed{kBySignal + result.training.signal};
  });
}

}  // namespace longspan::cli
