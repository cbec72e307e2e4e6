// Table 1 of Tay et al. 2020, arXiv:2011.04006, the Long Range Arena: accuracies of
// trained runs beside the printed ones.

#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/value.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/paper.h"
#include "longspan/cli/paper_table.h"
#include "longspan/cli/published.h"

namespace longspan::cli {
namespace {

namespace files = std::filesystem;

struct ArenaTableOptions {
  std::vector<std::string> folders;
  bool json = false;
};

struct Runs {
  double sum = 0;  // of accuracies in percent
  std::vector<std::string> folders = {};

  std::optional<double> mean() const {
    if (folders.empty()) return std::nullopt;
    return sum / static_cast<double>(folders.size());
  }
};

// By mechanism and task, as they are called here.
using Found = std::map<std::pair<std::string, std::string>, Runs>;

const Value* at(const Value& map, std::string_view name) {
  const auto* all = map.as<Value::Map>();
  if (!all) return nullptr;
  const auto found = all->find(name);
  return found == all->end() ? nullptr : &found->second;
}

std::string word_at(const Value& map, std::string_view section, std::string_view name) {
  const Value* const part = at(map, section);
  const Value* value = part ? at(*part, name) : nullptr;
  if (value && value->as<Value::Map>()) value = at(*value, "name");
  const auto* word = value ? value->as<std::string>() : nullptr;
  return word ? *word : "";
}

// The task of a run; Pathfinder on large images is Path-X.
std::string task_of(const Value& config) {
  constexpr int64_t kPathX = 128 * 128;
  const std::string name = word_at(config, "task", "name");
  const Value* const task = at(config, "task");
  const Value* const longest = task ? at(*task, "longest") : nullptr;
  const auto* tokens = longest ? longest->as<int64_t>() : nullptr;
  return name == "pathfinder" && tokens && *tokens >= kPathX ? "pathx" : name;
}

void read_run(const files::path& folder, Found& found) {
  const Value config = Value::parse(read_file(folder / "config.yaml"));
  const std::string path = folder / "result.json";
  double accuracy = 0;
  try {
    accuracy =
        nlohmann::json::parse(read_file(path)).at("best").at("test").at("accuracy");
  } catch (const nlohmann::json::exception&) {
    fail(path, " is not the result of a training that was judged on a test set");
  }
  Runs& runs = found[{word_at(config, "model", "attention"), task_of(config)}];
  runs.sum += 100 * accuracy;
  runs.folders.push_back(folder);
}

Found runs_in(const std::vector<std::string>& folders) {
  Found found;
  for (const std::string& folder : folders) {
    if (!files::is_directory(folder))
      throw UsageError(folder + " is no folder of runs");
    std::vector<files::path> all;
    if (files::exists(files::path(folder) / "result.json")) all.emplace_back(folder);
    for (const auto& entry : files::recursive_directory_iterator(folder))
      if (entry.is_directory() && files::exists(entry.path() / "result.json"))
        all.push_back(entry.path());
    if (all.empty())
      fail(folder, " has no run that came to its end: no result.json in it or below");
    std::ranges::sort(all);
    for (const files::path& run : all) read_run(run, found);
  }
  return found;
}

const Runs& runs_of(const Found& found, const ArenaRow& row, const ArenaColumn& task) {
  static const Runs kNone;
  const auto at = found.find({std::string(row.mechanism), std::string(task.task)});
  return at == found.end() ? kNone : at->second;
}

void print(const Found& found) {
  TextTable lines = {{"percent right: ours / printed"}};
  for (const ArenaColumn& task : kArenaTasks) lines[0].emplace_back(task.name);
  for (const ArenaRow& row : arena_rows()) {
    auto& line = lines.emplace_back();
    line.push_back(std::string(row.name) + " (" + std::string(row.mechanism) + ")");
    for (size_t i = 0; i < kArenaColumns; ++i) {
      const auto printed = row.accuracy[i];
      line.push_back(cell(runs_of(found, row, kArenaTasks[i]).mean(), 2) + " / " +
                     (printed ? cell(printed, 2) : "FAIL"));
    }
  }
  print_table(lines);
  std::cout
      << "\nListOps: always the most frequent answer is right in 17.2 %, the best "
         "guess from the first token in 36.4 %.\n";
  for (const auto& [key, runs] : found) {
    const auto& [mechanism, task] = key;
    const bool shown = std::ranges::any_of(arena_rows(),
                                           [&](const ArenaRow& row) {
                                             return row.mechanism == mechanism;
                                           }) &&
                       std::ranges::any_of(kArenaTasks, [&](const ArenaColumn& column) {
                         return column.task == task;
                       });
    if (!shown)
      std::cout << "not in the table: " << mechanism << " on " << task << ", "
                << cell(runs.mean(), 2) << " %\n";
  }
}

void print_json(const Found& found) {
  for (const ArenaRow& row : arena_rows())
    for (size_t i = 0; i < kArenaColumns; ++i) {
      const Runs& runs = runs_of(found, row, kArenaTasks[i]);
      nlohmann::ordered_json cell = {{"mechanism", row.mechanism},
                                     {"task", kArenaTasks[i].task},
                                     {"unit", "percent"},
                                     {"ours", or_null(runs.mean())},
                                     {"published", or_null(row.accuracy[i])},
                                     {"runs", runs.folders}};
      if (runs.mean() && row.accuracy[i])
        cell["ratio"] = *runs.mean() / *row.accuracy[i];
      std::cout << cell.dump() << '\n';
    }
}

}  // namespace

void add_arena_table(CLI::App& paper) {
  auto* const verb =
      paper.add_subcommand("lra",
                           "table 1 of Tay et al. 2020, arXiv:2011.04006: accuracies "
                           "on the Long Range Arena, "
                           "of runs in given folders beside the printed ones");
  verb->footer(
      "A run counts where its config.yaml names the mechanism and the task; of "
      "several\n"
      "the mean is shown. FAIL: it did not learn.\n\n"
      "Examples:\n"
      "  longspan paper lra\n"
      "  longspan paper lra arena runs/listops-dense --json");
  const auto options = std::make_shared<ArenaTableOptions>();
  verb->add_option("folders", options->folders,
                   "folders of runs, or of an arena; those below them count as well");
  verb->add_flag("--json", options->json, "a line of JSON for each cell");
  verb->callback([=] {
    const Found found = runs_in(options->folders);
    if (options->json)
      print_json(found);
    else
      print(found);
  });
}

}  // namespace longspan::cli
