#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/experiment_options.h"
#include "longspan/train/arena.h"

namespace longspan::cli {
namespace {

using Numbers = std::vector<std::pair<std::string, double>>;

// What a run is judged by: the accuracy of labels, or what a loss means in the terms of
// the task.
Numbers judged(const ArenaRun& run) {
  if (run.measures.empty()) return {{"accuracy", run.accuracy}};
  return run.measures;
}

// The same by several passes, if it was.
Numbers sampled(const ArenaRun& run) {
  Numbers numbers = judged(run);
  const size_t skipped = run.measures.empty() ? 0 : 2;
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i].second = run.sampled.at(i + skipped);
  return numbers;
}

std::string spaced(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string number(const std::string& name, double value) {
  if (name == "accuracy") return percent(value);
  std::ostringstream text;
  text << std::setprecision(4) << value;
  return text.str();
}

std::string with_deviation(const std::string& name, const Spread& spread) {
  std::string text = number(name, spread.mean);
  if (spread.count > 1) text += " +- " + number(name, spread.deviation);
  return text;
}

using Line = std::vector<std::string>;

// A line of an entry, by the numbers that `of` takes of a run.
Line line_of(const ArenaEntry& entry, const std::string& name,
             const std::function<Numbers(const ArenaRun&)>& of) {
  const auto first = std::ranges::find_if(
      entry.runs, [](const ArenaRun& run) { return run.refused.empty(); });
  Line line = {name};
  for (const auto& [measure, value] : of(*first)) {
    const auto place = line.size() - 1;
    line.push_back(with_deviation(measure, spread_of(entry, [&](const ArenaRun& run) {
                                    return of(run)[place].second;
                                  })));
  }
  const auto mean = [&](double (*number_of)(const ArenaRun&)) {
    return spread_of(entry, number_of).mean;
  };
  const auto whole = [](double value) {
    return std::to_string(static_cast<int64_t>(value + 0.5));
  };
  line.push_back(
      std::to_string(spread_of(entry, [](const ArenaRun&) { return 0.0; }).count));
  line.push_back(whole(
      mean([](const ArenaRun& run) { return static_cast<double>(run.best_step); })));
  line.push_back(
      short_number(mean([](const ArenaRun& run) { return run.tokens_per_second; })));
  line.push_back(short_number(mean([](const ArenaRun& run) {
                   return static_cast<double>(run.peak_bytes);
                 })) +
                 "B");
  line.push_back(short_number(
      mean([](const ArenaRun& run) { return static_cast<double>(run.parameters); })));
  line.push_back(duration(mean([](const ArenaRun& run) { return run.seconds; })));
  return line;
}

void print_table(const std::vector<Line>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const Line& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  const auto print = [&](const Line& line, char fill) {
    std::cout << '|';
    for (size_t i = 0; i < line.size(); ++i)
      std::cout << fill << std::left << std::setfill(fill)
                << std::setw(static_cast<int>(widths[i])) << line[i] << fill << '|';
    std::cout << std::setfill(' ') << '\n';
  };
  print(lines.front(), ' ');
  print(Line(widths.size()), '-');
  for (size_t i = 1; i < lines.size(); ++i) print(lines[i], ' ');
}

// As Markdown.
void print(const std::vector<ArenaEntry>& entries) {
  std::vector<Line> lines;
  for (const ArenaEntry& entry : entries) {
    const auto whole = std::ranges::find_if(
        entry.runs, [](const ArenaRun& run) { return run.refused.empty(); });
    if (whole == entry.runs.end()) continue;
    if (lines.empty()) {
      Line head = {"entry"};
      for (const auto& [name, value] : judged(*whole)) head.push_back(spaced(name));
      for (const char* column :
           {"runs", "best step", "tokens/s", "peak memory", "parameters", "time"})
        head.emplace_back(column);
      lines.push_back(head);
    }
    lines.push_back(line_of(entry, entry.name, judged));
    if (!whole->sampled.empty())
      lines.push_back(line_of(
          entry, entry.name + ", mean of " + std::to_string(entry.samples), sampled));
  }
  if (!lines.empty()) print_table(lines);
  for (const ArenaEntry& entry : entries)
    for (const ArenaRun& run : entry.runs)
      if (!run.refused.empty())
        std::cout << "no result: " << entry.name << ", seed " << run.seed << ": "
                  << run.refused << '\n';
}

nlohmann::ordered_json json_of(const std::vector<ArenaEntry>& entries) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ArenaEntry& entry : entries) {
    nlohmann::ordered_json out = {{"name", entry.name}};
    for (const auto& [name, value] : entry.values) out["values"][name] = value.text();
    for (const ArenaRun& run : entry.runs) {
      nlohmann::ordered_json one = {{"seed", run.seed}, {"folder", run.folder}};
      if (!run.refused.empty()) {
        one["refused"] = run.refused;
      } else {
        one["best_step"] = run.best_step;
        one["accuracy"] = run.accuracy;
        one["loss"] = run.loss;
        for (const auto& [name, value] : run.measures) one[name] = value;
        if (!run.sampled.empty()) {
          one["samples"] = {{"passes", entry.samples}};
          for (const auto& [name, value] : sampled(run)) one["samples"][name] = value;
        }
        one["tokens_per_second"] = run.tokens_per_second;
        one["peak_bytes"] = run.peak_bytes;
        one["parameters"] = run.parameters;
        one["flops"] = run.flops;
        one["seconds"] = run.seconds;
      }
      out["runs"].push_back(one);
    }
    list.push_back(out);
  }
  return list;
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
      "    --arena.seeds '[1, 2, 3]'\n"
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
    const ArenaResult result =
        run_arena(arena, given->folder, given->quiet, [&](const std::string& line) {
          if (!given->quiet) std::cerr << line << '\n';
        });
    const auto json = json_of(result.entries);
    write_whole(given->folder + "/arena.json", json.dump(2) + "\n");
    if (given->json)
      std::cout << json.dump() << '\n';
    else
      print(result.entries);
    constexpr int kBySignal = 128;
    if (result.signal != 0) throw Failed{kBySignal + result.signal};
    const bool any = std::ranges::any_of(result.entries, [](const ArenaEntry& entry) {
      return spread_of(entry, [](const ArenaRun&) { return 0.0; }).count > 0;
    });
    if (!any) throw Failed{};
  });
}

}  // namespace longspan::cli
