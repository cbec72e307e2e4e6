// Table 1 of Tay et al. 2020, arXiv:2011.04006, the Long Range Arena: accuracies of
// trained runs beside the printed ones.

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/paper.h"
#include "longspan/cli/paper_table.h"
#include "longspan/report/comparison.h"
#include "longspan/report/published.h"

namespace longspan::cli {
namespace {

using report::kArenaTasks;
using report::Source;

struct ArenaTableOptions {
  std::vector<std::string> folders;
  bool json = false;
};

// What the Arena's released code trains on, in the order of kArenaTasks.
constexpr double kExamples[] = {5000 * 32.0,   20000 * 32.0,  5000 * 32.0,
                                35000 * 256.0, 62400 * 512.0, 500000 * 64.0};

// Models in the sizes of the Arena: not the study of deep and wide ones.
std::vector<const Source*> sources() {
  std::vector<const Source*> all;
  for (const Source& source : report::published())
    if (!source.paper.starts_with("Brown")) all.push_back(&source);
  return all;
}

// A model of ours, of one or several seeds.
struct Ours {
  std::string entry, mechanism, task, shape;
  double accuracy = 0, deviation = 0;     // in percent
  double examples = 0;                    // that a run was trained on
  std::vector<std::string> folders = {};  // of its runs
  std::optional<double> published = {};
  std::string source = {}, reason = {};  // where from, or why none

  // Of what the Arena's are trained on.
  std::optional<double> budget() const {
    const auto at = std::ranges::find(kArenaTasks, task);
    if (at == std::end(kArenaTasks)) return std::nullopt;
    return examples / kExamples[at - std::begin(kArenaTasks)];
  }
};

double examples_of(const std::string& folder) {
  return nlohmann::json::parse(read_file(folder + "/result.json")).at("examples");
}

Ours ours_of(const report::Comparison& comparison, const report::Contender& one) {
  const auto spread = report::judged(comparison, one);
  const auto place = report::place_of(one.experiment, whole_run(one.entry)->facts);
  Ours ours{.entry = one.name(),
            .mechanism = place.mechanism,
            .task = place.task.empty() ? one.experiment.task.name : place.task,
            .shape = one.shape(),
            .accuracy = 100 * spread.mean,
            .deviation = 100 * spread.deviation,
            .reason = place.reason};
  for (const ArenaRun& run : one.entry.runs)
    if (run.refused.empty()) ours.folders.push_back(run.folder);
  ours.examples = examples_of(ours.folders.front());
  if (!ours.reason.empty()) return ours;
  for (const Source* const source : sources()) {
    ours.published = report::printed(*source, ours.mechanism, ours.task);
    if (!ours.published) continue;
    ours.source = source->name;
    return ours;
  }
  ours.reason = "no number is printed";
  return ours;
}

// The runs and arenas at a path or, where there is none, below it. Links are not
// followed: they would show a run twice.
void find_in(const std::string& path, std::vector<std::string>& found) {
  const auto is_there = [&](const char* file) {
    return access((path + file).c_str(), F_OK) == 0;
  };
  if (is_there("/result.json") || is_there("/arena.json")) {
    found.push_back(path);
    return;
  }
  DIR* const folder = opendir(path.c_str());
  if (!folder) return;
  while (const dirent* entry = readdir(folder)) {
    const std::string below = path + "/" + entry->d_name;
    struct stat facts;
    if (entry->d_name[0] != '.' && lstat(below.c_str(), &facts) == 0 &&
        S_ISDIR(facts.st_mode))
      find_in(below, found);
  }
  closedir(folder);
}

std::vector<std::string> found_in(const std::string& folder) {
  struct stat facts;
  if (stat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))
    throw UsageError(folder + " is no folder of runs");
  std::vector<std::string> found;
  find_in(folder, found);
  if (found.empty())
    fail(folder, " has no run that came to its end: no result.json in it or below");
  std::ranges::sort(found);
  return found;
}

std::vector<Ours> ours_in(const std::vector<std::string>& folders) {
  std::vector<std::string> found;
  for (const std::string& folder : folders)
    for (const std::string& one : found_in(folder)) found.push_back(one);
  std::vector<Ours> all;
  for (const auto& comparison : report::read_comparisons(found)) {
    if (!comparison.more_is_better()) continue;
    for (const auto& contender : comparison.contenders)
      if (contender.is_judged()) all.push_back(ours_of(comparison, contender));
  }
  if (!folders.empty() && all.empty())
    fail(folders.front(), " has no run that is judged by its accuracy");
  std::ranges::stable_sort(all, {}, [](const Ours& ours) {
    return std::ranges::find(kArenaTasks, ours.task) - std::begin(kArenaTasks);
  });
  return all;
}

std::vector<std::string_view> mechanisms_of(const Source& source) {
  std::vector<std::string_view> names;
  for (const report::Published& one : source.numbers)
    if (std::ranges::find(names, one.mechanism) == names.end())
      names.push_back(one.mechanism);
  return names;
}

void print_published() {
  const Source& arena = report::published().front();
  TextTable lines = {{"percent right, printed"}};
  for (const std::string_view task : kArenaTasks) lines[0].emplace_back(task);
  for (const std::string_view mechanism : mechanisms_of(arena)) {
    auto& line = lines.emplace_back();
    line.emplace_back(mechanism);
    for (const std::string_view task : kArenaTasks) {
      const auto accuracy = report::printed(arena, mechanism, task);
      line.push_back(accuracy ? cell(accuracy, 2) : "FAIL");
    }
  }
  print_table(lines);
}

void print(const std::vector<Ours>& all) {
  TextTable lines = {{"task", "mechanism", "entry", "shape", "runs", "budget", "ours",
                      "printed", "ratio"}};
  for (const Ours& ours : all) {
    if (!ours.published) continue;
    std::string accuracy = cell(ours.accuracy, 2);
    if (ours.folders.size() > 1) accuracy += " ± " + cell(ours.deviation, 2);
    const auto budget = ours.budget();
    lines.push_back({ours.task, ours.mechanism, ours.entry, ours.shape,
                     std::to_string(ours.folders.size()),
                     budget ? percent(*budget) : "-", accuracy,
                     cell(ours.published, 2) + " " + ours.source,
                     cell(ours.accuracy / *ours.published, 2)});
  }
  if (lines.size() > 1) print_table(lines, /*words=*/4);
  if (lines.size() > 1 && lines[1][0] == kArenaTasks[0])
    std::cout
        << "ListOps: always the most frequent answer is right in 17.2 %, the best "
           "guess from the first token in 36.4 %.\n";
  for (const Ours& ours : all)
    if (!ours.published)
      std::cout << "beside no printed number: " << ours.entry << ", " << ours.mechanism
                << " on " << ours.task << ", " << cell(ours.accuracy, 2)
                << " %: " << ours.reason << '\n';
}

void print_json(const std::vector<Ours>& all) {
  for (const Ours& ours : all) {
    nlohmann::ordered_json line = {{"mechanism", ours.mechanism},
                                   {"task", ours.task},
                                   {"unit", "percent"},
                                   {"ours", ours.accuracy},
                                   {"published", or_null(ours.published)},
                                   {"source", ours.source},
                                   {"entry", ours.entry},
                                   {"shape", ours.shape},
                                   {"deviation", ours.deviation},
                                   {"examples", ours.examples},
                                   {"budget", or_null(ours.budget())},
                                   {"runs", ours.folders}};
    if (ours.published) line["ratio"] = ours.accuracy / *ours.published;
    if (!ours.reason.empty()) line["reason"] = ours.reason;
    std::cout << line.dump() << '\n';
  }
  // And the cells of the table that we have nothing for.
  const Source& arena = report::published().front();
  for (const std::string_view mechanism : mechanisms_of(arena))
    for (const std::string_view task : kArenaTasks) {
      const bool filled = std::ranges::any_of(all, [&](const Ours& ours) {
        return ours.published && ours.mechanism == mechanism && ours.task == task;
      });
      if (filled) continue;
      const nlohmann::ordered_json line = {
          {"mechanism", mechanism},
          {"task", task},
          {"unit", "percent"},
          {"ours", nullptr},
          {"published", or_null(report::printed(arena, mechanism, task))},
          {"source", arena.name},
          {"runs", nlohmann::json::array()}};
      std::cout << line.dump() << '\n';
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
      "A model has a line of its own; runs that differ in their seeds alone are one.\n"
      "Budget: what it was trained on, of what the Arena's released code trains on.\n"
      "What the printed numbers are not about (reviews in words, easy images, other\n"
      "papers, short expressions) stands beside none, with the reason. Without "
      "folders\n"
      "the printed table; FAIL: it did not learn.\n\n"
      "Examples:\n"
      "  longspan paper lra\n"
      "  longspan paper lra arena runs/listops-dense --json");
  const auto options = std::make_shared<ArenaTableOptions>();
  verb->add_option("folders", options->folders,
                   "folders of runs, or of an arena; those below them count as well");
  verb->add_flag("--json", options->json, "a line of JSON for each cell");
  verb->callback([=] {
    const auto all = ours_in(options->folders);
    if (options->json)
      print_json(all);
    else if (options->folders.empty())
      print_published();
    else
      print(all);
  });
}

}  // namespace longspan::cli
