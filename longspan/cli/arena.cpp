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

void write_reports(const report::Comparison& comparison, const std::string& folder) {
  const std::string file = folder + "/report";
  write_whole(file + ".html", report::comparison_page(comparison, folder));
  write_whole(file + ".md", report::comparison_markdown(comparison, folder));
  write_whole(file + ".csv", report::as_csv(report::run_table(comparison)));
}

void print(const report::Comparison& comparison) {
  const auto table = report::result_table(comparison);
  if (!table.rows.empty()) std::cout << report::as_markdown(table);
  for (const std::string& line : report::refusals(comparison))
    std::cout << "no result: " << line << '\n';
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
      "A run that was stopped goes on when the command is given again; one that came "
      "to "
      "its end is not trained again. Any key of the configuration is an option.");
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
    options->resolve(fields(arena));
    if (options->dumped(fields(arena))) return;
    arena_entries(arena);
    if (given->folder.empty())
      throw UsageError("--out is required: the folder of all runs");
    const auto tell = [&](const std::string& line) {
      if (!given->quiet) std::cerr << line << std::endl;
    };
    const ArenaResult result =
        run_arena(arena, given->folder, given->quiet, tell, kThisProgram);
    const auto comparison = report::read_comparison({given->folder});
    write_reports(comparison, given->folder);
    if (given->json) {
      std::cout << arena_json(result.entries, given->folder);
    } else {
      print(comparison);
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
