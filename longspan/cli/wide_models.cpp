#include "longspan/cli/wide_models.h"

#include <algorithm>

#include "longspan/base/error.h"
#include "longspan/cli/wide_configs.h"
#include "longspan/train/arena.h"

namespace longspan::cli {
namespace {

constexpr WideTask kTasks[] = {{"imdb-token", "imdb-words", "mechanisms"},
                               {"imdb-byte", "imdb-bytes", "mechanisms"},
                               {"listops", "listops", "listops-mechanisms"},
                               {"matching", "retrieval", "retrieval-mechanisms"}};

constexpr WideMechanism kMechanisms[] = {
    {"BigBird", "bigbird"},         {"Linear", "linear"},
    {"Linformer", "linformer"},     {"Local", "local"},
    {"Longformer", "longformer"},   {"Performer", "performer"},
    {"Sinkhorn", "sinkhorn"},       {"Sparse", "sparse"},
    {"Synthesizer", "synthesizer"}, {"Transformer", "dense"}};

std::string text_of(std::string_view config) {
  const auto found = std::ranges::find(kWideConfigs, config, &WideConfig::name);
  require(found != std::end(kWideConfigs), "no configuration wide/", config);
  return std::string(found->text);
}

}  // namespace

std::span<const WideTask> wide_tasks() { return kTasks; }
std::span<const WideMechanism> wide_mechanisms() { return kMechanisms; }

Experiment wide_experiment(const WideMechanism& mechanism, const WideTask& task,
                           bool deep) {
  ArenaOptions options;
  ConfigReader reader(fields(options));
  for (const std::string_view config : {task.config, task.entries})
    reader.read_text(text_of(config), "wide/" + std::string(config));
  const std::string name = std::string(mechanism.entry) + (deep ? " deep" : " wide");
  for (const ArenaEntry& entry : arena_entries(options))
    if (entry.name == name) return experiment_of(options, entry, /*seed=*/1);
  fail("wide/", task.entries, " has no entry ", name);
}

}  // namespace longspan::cli
