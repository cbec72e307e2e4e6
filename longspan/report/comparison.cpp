#include "longspan/report/comparison.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"

namespace longspan::report {
namespace {

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

Experiment experiment_in(const std::string& folder) {
  Experiment experiment;
  ConfigReader(fields(experiment)).read_file(folder + "/config.yaml");
  return experiment;
}

// With what its folder tells beside the results.
void add_files(Contender& contender) {
  bool is_first = true;
  for (const ArenaRun& run : contender.entry.runs) {
    contender.histories.push_back(
        exists(run.folder + "/metrics.jsonl") ? read_history(run.folder) : History());
    if (!is_first || !exists(run.folder + "/config.yaml")) continue;
    contender.experiment = experiment_in(run.folder);
    contender.environment = read_environment(run.folder);
    is_first = false;
  }
}

std::string name_of(const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

// A run that stands alone.
Contender run_in(const std::string& folder) {
  Contender contender;
  contender.entry.name = name_of(folder);
  ArenaRun run{.folder = folder};
  if (exists(folder + "/result.json")) {
    run = read_run(folder);
  } else {
    const History history =
        exists(folder + "/metrics.jsonl") ? read_history(folder) : History();
    run.refused = history.train.empty() ? "not trained yet"
                                        : "not at its end, but at step " +
                                              std::to_string(history.train.back().step);
  }
  contender.entry.runs.push_back(run);
  add_files(contender);
  contender.entry.runs.front().seed = contender.experiment.train.seed;
  return contender;
}

bool differ_in_seed_alone(Contender& a, Contender& b) {
  auto names = differing(fields(a.experiment), fields(b.experiment));
  std::erase(names, "task.data");
  return names == std::vector<std::string>{"train.seed"};
}

// Adds a run to the contender it belongs to. Its name is then what the names of the
// runs have in common.
void add_run(std::vector<Contender>& contenders, Contender run) {
  const auto same = std::ranges::find_if(
      contenders, [&](Contender& other) { return differ_in_seed_alone(other, run); });
  if (same == contenders.end()) {
    contenders.push_back(std::move(run));
    return;
  }
  std::string& name = same->entry.name;
  const auto differs = std::ranges::mismatch(name, run.entry.name).in1;
  std::string common(name.begin(), differs);
  while (!common.empty() && std::string_view("-_. 0123456789").find(common.back()) !=
                                std::string_view::npos)
    common.pop_back();
  for (const std::string_view word : {"-seed", "_seed", ".seed", "-s", "_s"})
    if (common.ends_with(word)) common.resize(common.size() - word.size());
  if (!common.empty()) name = common;
  same->entry.runs.push_back(run.entry.runs.front());
  same->histories.push_back(run.histories.front());
}

std::string number_text(double value) {
  std::ostringstream text;
  text << std::setprecision(4) << value;
  return text.str();
}

std::string exact(double value) {
  std::ostringstream text;
  text << std::setprecision(10) << value;
  return text.str();
}

double measure_of(const ArenaRun& run, const std::string& measure) {
  if (measure == "accuracy") return run.accuracy;
  for (const auto& [name, value] : run.measures)
    if (name == measure) return value;
  return NAN;
}

std::string spaced(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

// The names of the terms of the task, or accuracy alone.
std::vector<std::string> measures(const Comparison& comparison) {
  if (comparison.more_is_better()) return {"accuracy"};
  std::vector<std::string> names;
  for (const Contender& contender : comparison.contenders)
    if (const ArenaRun* const run = whole_run(contender.entry))
      for (const auto& [name, value] : run->measures)
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

Cell spread_cell(const std::string& measure, const Spread& spread) {
  if (spread.count == 0 || std::isnan(spread.mean)) return {.text = "-"};
  const auto text = [&](double value) {
    return measure == "accuracy" ? percent(value) : number_text(value);
  };
  std::string words = text(spread.mean);
  if (spread.count > 1) words += " ± " + text(spread.deviation);
  return number_cell(spread.mean, words);
}

Cell seconds_cell(double seconds) {
  return number_cell(seconds, seconds >= 1 ? number_text(seconds) + " s"
                                           : number_text(1e3 * seconds) + " ms");
}

// By the mean of the probabilities of several passes.
double sampled_measure(const ArenaRun& run, const std::string& measure) {
  if (run.sampled.empty()) return NAN;
  if (measure == "accuracy") return run.sampled[0];
  for (size_t i = 0; i < run.measures.size(); ++i)
    if (run.measures[i].first == measure) return run.sampled.at(i + 2);
  return NAN;
}

}  // namespace

Comparison read_comparison(const std::vector<std::string>& folders) {
  Comparison comparison;
  for (const std::string& folder : folders) {
    if (exists(folder + "/arena.json")) {
      for (ArenaEntry& entry : read_arena(folder)) {
        Contender contender;
        contender.entry = std::move(entry);
        if (folders.size() > 1)
          contender.entry.name = name_of(folder) + ": " + contender.entry.name;
        add_files(contender);
        comparison.contenders.push_back(std::move(contender));
      }
    } else {
      require(exists(folder + "/config.yaml"), folder,
              " is no run and no arena: it has neither config.yaml nor arena.json");
      add_run(comparison.contenders, run_in(folder));
    }
  }
  for (const Contender& contender : comparison.contenders) {
    const ArenaRun* const run = whole_run(contender.entry);
    if (!run) continue;
    comparison.references = run->references;
    comparison.facts = run->facts;
    if (!run->measures.empty()) comparison.measure = run->measures.back().first;
    break;
  }
  return comparison;
}

Spread mean_of(const Contender& contender, double (*number)(const ArenaRun&)) {
  return spread_of(contender.entry, number);
}

Spread judged(const Comparison& comparison, const Contender& contender) {
  return spread_of(contender.entry, [&](const ArenaRun& run) {
    return measure_of(run, comparison.measure);
  });
}

std::string judged_text(const Comparison& comparison, const Spread& spread) {
  return spread_cell(comparison.measure, spread).text;
}

Table result_table(const Comparison& comparison) {
  Table table{.columns = {{.title = "entry"}}};
  const auto names = measures(comparison);
  for (const std::string& name : names)
    table.columns.push_back(
        {.title = spaced(name),
         .help = "on the test set, mean ± standard deviation of the runs",
         .best = name == "accuracy" ? Best::most : Best::least});
  using Of = double (*)(const ArenaRun&);
  struct Number {
    Column column;
    Of of;
    Cell (*cell)(double);
  };
  constexpr auto whole = [](double value) {
    return number_cell(value, std::to_string(std::llround(value)));
  };
  constexpr auto rounded = [](double value) {
    return number_cell(value, short_number(value));
  };
  constexpr auto bytes = [](double value) {
    return number_cell(value, short_number(value) + "B");
  };
  constexpr auto time = [](double value) {
    return number_cell(value, duration(value));
  };
  const std::vector<Number> numbers = {
      {{"test loss", "cross-entropy on the test set", Best::least},
       [](const ArenaRun& run) { return run.loss; },
       [](double value) { return number_cell(value, number_text(value)); }},
      {{"runs", "seeds that came to their end"},
       [](const ArenaRun&) { return 1.0; },
       nullptr},
      {{"best step", "of training, by the validation set"},
       [](const ArenaRun& run) { return static_cast<double>(run.best_step); },
       whole},
      {{"tokens/s", "in training, without evaluations", Best::most},
       [](const ArenaRun& run) { return run.tokens_per_second; },
       rounded},
      {{"peak memory", "of tensors, in training", Best::least},
       [](const ArenaRun& run) { return static_cast<double>(run.peak_bytes); },
       bytes},
      {{"parameters", "", Best::least},
       [](const ArenaRun& run) { return static_cast<double>(run.parameters); },
       rounded},
      {{"training FLOPs", "counted; a backward pass as two forward passes",
        Best::least},
       [](const ArenaRun& run) { return run.flops; },
       rounded},
      {{"checkpoint", "weights and the optimiser's moments", Best::least},
       [](const ArenaRun& run) { return static_cast<double>(run.checkpoint_bytes); },
       bytes},
      {{"time", "of training and evaluation", Best::none},
       [](const ArenaRun& run) { return run.seconds; },
       time}};
  for (const Number& number : numbers) table.columns.push_back(number.column);
  const bool has_latency = std::ranges::any_of(
      comparison.contenders,
      [](const Contender& contender) { return contender.entry.latency.has_value(); });
  if (has_latency) {
    table.columns.push_back({"latency",
                             "mean of the forward passes over random sequences of full "
                             "length, one on the CPU, 32 on a GPU",
                             Best::least});
    table.columns.push_back(
        {"forward FLOPs", "of one sequence of full length", Best::least});
  }
  for (const Contender& contender : comparison.contenders) {
    const ArenaEntry& entry = contender.entry;
    if (!contender.is_judged()) continue;
    Row row = {{.text = entry.name}};
    for (const std::string& name : names)
      row.push_back(spread_cell(name, spread_of(entry, [&](const ArenaRun& run) {
                                  return measure_of(run, name);
                                })));
    for (const Number& number : numbers) {
      const Spread spread = spread_of(entry, number.of);
      row.push_back(number.cell ? number.cell(spread.mean)
                                : whole(static_cast<double>(spread.count)));
    }
    if (has_latency) {
      row.push_back(entry.latency ? seconds_cell(entry.latency->timing.mean)
                                  : Cell{.text = "-"});
      row.push_back(entry.latency ? rounded(static_cast<double>(entry.latency->flops))
                                  : Cell{.text = "-"});
    }
    table.rows.push_back(row);
    if (whole_run(entry)->sampled.empty()) continue;
    Row sampled = {{.text = entry.name + ", mean of " + std::to_string(entry.samples)}};
    for (const std::string& name : names)
      sampled.push_back(spread_cell(name, spread_of(entry, [&](const ArenaRun& run) {
                                      return sampled_measure(run, name);
                                    })));
    while (sampled.size() < table.columns.size()) sampled.push_back({.text = "-"});
    table.rows.push_back(sampled);
  }
  if (comparison.more_is_better())
    for (const Reference& reference : comparison.references)
      table.foot.push_back(
          {{.text = reference.name}, {.text = percent(reference.accuracy)}});
  return table;
}

Table run_table(const Comparison& comparison) {
  Table table;
  for (const char* const title :
       {"entry", "seed", "folder", "accuracy", "loss", "answers", "best_step",
        "tokens_per_second", "peak_bytes", "parameters", "flops", "checkpoint_bytes",
        "seconds", "latency_seconds", "latency_batch", "latency_length",
        "forward_flops"})
    table.columns.push_back({.title = title});
  const auto names = measures(comparison);
  if (!comparison.more_is_better())
    for (const std::string& name : names) table.columns.push_back({.title = name});
  table.columns.push_back({.title = "refused"});
  for (const auto& [entry, experiment, histories, environment] : comparison.contenders)
    for (const ArenaRun& run : entry.runs) {
      Row row = {{entry.name}, {std::to_string(run.seed)}, {run.folder}};
      const bool is_whole = run.refused.empty();
      const auto add = [&](double value, bool is_known = true) {
        row.push_back({.text = is_whole && is_known ? exact(value) : ""});
      };
      add(run.accuracy);
      add(run.loss);
      add(static_cast<double>(run.answers));
      add(static_cast<double>(run.best_step));
      add(run.tokens_per_second);
      add(static_cast<double>(run.peak_bytes));
      add(static_cast<double>(run.parameters));
      add(run.flops);
      add(static_cast<double>(run.checkpoint_bytes));
      add(run.seconds);
      const Latency latency = entry.latency.value_or(Latency());
      const bool timed = entry.latency.has_value();
      add(latency.timing.mean, timed);
      add(static_cast<double>(latency.batch), timed);
      add(static_cast<double>(latency.length), timed);
      add(static_cast<double>(latency.flops), timed);
      if (!comparison.more_is_better())
        for (const std::string& name : names) add(measure_of(run, name));
      row.push_back({.text = run.refused});
      table.rows.push_back(row);
    }
  return table;
}

std::vector<std::string> refusals(const Comparison& comparison) {
  std::vector<std::string> lines;
  for (const Contender& contender : comparison.contenders)
    for (const ArenaRun& run : contender.entry.runs)
      if (!run.refused.empty())
        lines.push_back(contender.name() + ", seed " + std::to_string(run.seed) + ": " +
                        run.refused);
  return lines;
}

}  // namespace longspan::report
