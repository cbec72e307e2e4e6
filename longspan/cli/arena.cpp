#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "longspan/base/whole_file.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/experiment_options.h"
#include "longspan/report/comparison_page.h"
#include "longspan/train/arena.h"

namespace longspan::cli {
namespace {

// The program that runs, to be started again.
constexpr const char* kThisProgram = "/proc/self/exe";

using Comparisons = std::vector<report::Comparison>;

void write_reports(const Comparisons& comparisons, const std::string& folder) {
  const std::string file = folder + "/report", title = report::title_of(comparisons);
  write_whole(file + ".html", report::comparison_page(comparisons, title));
  write_whole(file + ".md", report::comparison_markdown(comparisons, title));
  write_whole(file + ".csv", report::as_csv(report::run_table(comparisons)));
}

void print(const Comparisons& comparisons) {
  for (const report::Comparison& comparison : comparisons) {
    const auto table = report::result_table(comparison);
    if (!table.rows.empty()) std::cout << report::as_markdown(table);
    for (const std::string& line : report::refusals(comparison))
      std::cout << "no result: " << line << '\n';
  }
}

}  // namespace

void add_arena(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "arena", "trains several models under one budget and compares them");
  verb->footer(
      "Examples:\n"
      "  longspan arena -c configs/listops-short.yaml --data short --out arena \\\n"
      "    --arena.entries '[dense, linear, {name: wide, model.layers: 1, model.heads: "
      "16}]' \\\n"
      "    --arena.seeds '[1, 2, 3]' --arena.processes 2\n"
      "  longspan arena --out arena              # goes on with one that was stopped\n"
      "A run that came to its end is not trained again, unless its budget has grown. "
      "Any key\nof the configuration is an option.");
  const auto options = std::make_shared<ExperimentOptions>(*verb);
  struct Given {
    std::string folder;
    bool quiet = false, json = false;
  };
  const auto given = std::make_shared<Given>();
  verb->add_option("--out", given->folder, "the folder of all runs");
  verb->add_flag("--json", given->json, "the results as JSON");
  verb->add_flag("--quiet", given->quiet, "nothing on standard error but mistakes");
  verb->callback([=] {
    ArenaOptions arena;
    // Without a word on what is compared: the arena that is there.
    const std::string stored = arena_options_path(given->folder);
    const bool goes_on = !given->folder.empty() && !options->has_files() &&
                         !options->gives("arena.entries") &&
                         access(stored.c_str(), F_OK) == 0;
    options->resolve(fields(arena), goes_on ? stored : "");
    if (options->dumped(fields(arena))) return;
    arena_entries(arena);
    if (given->folder.empty())
      throw UsageError("--out is required: the folder of all runs");
    const auto tell = [&](const std::string& line) {
      if (!given->quiet) std::cerr << line << std::endl;
    };
    const ArenaResult result =
        run_arena(arena, given->folder, given->quiet, tell, kThisProgram);
    const auto comparisons = report::read_comparisons({given->folder});
    write_reports(comparisons, given->folder);
    if (given->json) {
      std::cout << arena_json(result.entries, given->folder);
    } else {
      print(comparisons);
      std::cout << "\nreport: " << given->folder << "/report.html, .md and .csv\n";
    }
    constexpr int kBySignal = 128;
    if (result.signal != 0) throw Failed{kBySignal + result.signal};
    const bool any = std::ranges::any_of(result.entries, [](const ArenaEntry& entry) {
      return whole_run(entry) != nullptr;
    });
    if (!any) throw Failed{};
  });
}

}  // namespace longspan::cli
