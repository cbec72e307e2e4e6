#include <iostream>
#include <memory>

#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/report/comparison_page.h"

namespace longspan::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> folders, files;
  std::string title;
};

using Comparisons = std::vector<report::Comparison>;
using Writer = std::string (*)(const Comparisons&, const std::string& title);

// By the ending of the file.
Writer writer_of(const std::string& file) {
  if (file.ends_with(".html")) return report::comparison_page;
  if (file.ends_with(".md")) return report::comparison_markdown;
  if (file.ends_with(".csv"))
    return [](const Comparisons& comparisons, const std::string&) {
      return report::as_csv(report::run_table(comparisons));
    };
  throw UsageError("--out must end in .html, .md or .csv, got " + file);
}

void write_report(const ReportOptions& options) {
  std::vector<std::pair<std::string, Writer>> writers;
  for (const std::string& file : options.files)
    writers.emplace_back(file, writer_of(file));
  const auto comparisons = report::read_comparisons(options.folders);
  const std::string title =
      options.title.empty() ? report::title_of(comparisons) : options.title;
  for (const auto& [file, write] : writers) {
    write_whole(file, write(comparisons, title));
    std::cout << file << '\n';
  }
  if (writers.empty()) std::cout << report::comparison_markdown(comparisons, title);
}

}  // namespace

void add_report(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "report",
      "compares runs and arenas: a page with tables and charts, Markdown, CSV");
  verb->footer(
      "Examples:\n"
      "  longspan report arena --out report.html\n"
      "  longspan report runs/dense runs/local --out both.html --out both.csv\n"
      "  longspan report arena                          # Markdown\n"
      "A page is one file that needs no other; .csv has a line for each run. Runs that "
      "differ in\n"
      "their seeds alone are one entry; each task has tables and charts of its own.");
  const auto options = std::make_shared<ReportOptions>();
  verb->add_option("folders", options->folders, "folders of runs and of arenas")
      ->required();
  verb->add_option("--out", options->files,
                   "a file to write, .html, .md or .csv; more with --out each; none: "
                   "Markdown on standard output")
      ->allow_extra_args(false);
  verb->add_option("--title", options->title, "of the report");
  verb->callback([=] { write_report(*options); });
}

}  // namespace longspan::cli
