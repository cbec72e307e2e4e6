#include "longspan/report/comparison.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>

#include "longspan/attention/settings.h"
#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"

namespace longspan::report {
namespace {

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// The fingerprint of what a run was trained on; 0: not known.
uint32_t data_of(const std::string& folder) {
  const std::string path = folder + "/best/state.json";
  if (!exists(path)) return 0;
  const auto state = state_from(read_file(path));
  return state ? state->data : 0;
}

// With what its folder tells beside the results.
void add_files(Contender& contender) {
  bool is_first = true;
  for (const ArenaRun& run : contender.entry.runs) {
    // What is in the folder of one that was refused may be of another.
    const bool is_own = run.refused.empty() || run.goes_on;
    contender.histories.push_back(is_own ? read_history(run.folder) : History());
    if (!is_first || !is_own || !exists(run.folder + "/config.yaml")) continue;
    contender.experiment = stored_experiment(run.folder);
    contender.environment = read_environment(run.folder);
    contender.data = data_of(run.folder);
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
  contender.entry = {.name = name_of(folder), .runs = {run_so_far(folder)}};
  add_files(contender);
  contender.entry.runs.front().seed = contender.experiment.train.seed;
  return contender;
}

// Those of an arena.
std::vector<Contender> entries_in(const std::string& folder) {
  ArenaOptions options;
  const std::string path = arena_options_path(folder);
  if (exists(path)) ConfigReader(fields(options)).read_file(path);
  std::vector<Contender> all;
  for (ArenaEntry& entry : read_arena(folder)) {
    Contender& contender = all.emplace_back();
    contender.entry = std::move(entry);
    contender.experiment = experiment_of(options, contender.entry, 1);
    add_files(contender);
    Environment& facts = contender.environment;
    if (facts.empty()) continue;
    const auto threads =
        std::ranges::find(facts, "threads", &Environment::value_type::first);
    if (threads != facts.end()) threads->first = "threads of a training";
    if (const auto& latency = contender.entry.latency)
      facts.emplace_back("threads of the latency", std::to_string(latency->threads));
  }
  return all;
}

bool differ_in_seed_alone(Contender& a, Contender& b) {
  auto names = differing(fields(a.experiment), fields(b.experiment));
  std::erase(names, "task.data");
  if (a.data != 0 && b.data != 0 && a.data != b.data) return false;
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

// Whether two are judged by one test set, as far as can be told.
bool have_one_task(Contender& a, Contender& b) {
  static const std::set<std::string> of_task = {
      "name",        "size",       "difficulty", "goal",  "train",     "valid", "test",
      "valid_share", "test_share", "split_seed", "pairs", "documents", "judged"};
  auto names = differing(fields(a.experiment.task), fields(b.experiment.task));
  if (std::ranges::any_of(names,
                          [](const auto& name) { return of_task.contains(name); }))
    return false;
  if (a.data != 0 && a.data == b.data) return true;
  // Other examples of the same data, as other tokens or cut elsewhere?
  const bool in_one_folder = std::erase(names, "data") == 0;
  return in_one_folder && (!names.empty() || a.data == 0 || b.data == 0);
}

// What all say is said once, else with the names of those that say it.
std::vector<std::string> facts_of(const std::vector<Contender>& contenders) {
  std::vector<std::pair<std::string, std::vector<std::string>>> said;
  size_t judged = 0;
  for (const Contender& contender : contenders) {
    const ArenaRun* const run = whole_run(contender.entry);
    if (!run) continue;
    ++judged;
    for (const std::string& fact : run->facts) {
      auto known =
          std::ranges::find(said, fact, [](const auto& one) { return one.first; });
      if (known == said.end()) known = said.insert(said.end(), {fact, {}});
      known->second.push_back(contender.name());
    }
  }
  std::vector<std::string> facts;
  for (const auto& [fact, names] : said)
    facts.push_back(names.size() == judged ? fact : fact + " (" + joined(names) + ")");
  return facts;
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
  if (spread.count > 1) {
    const size_t unit = std::min(words.find(' '), words.size());  // said once
    words = words.substr(0, unit) + " ± " + text(spread.deviation);
  }
  return number_cell(spread.mean, words);
}

Cell latency_cell(const std::optional<Latency>& latency) {
  if (!latency) return {.text = "-"};
  const auto& [mean, deviation, bytes] = latency->timing;
  const double scale = mean >= 1 ? 1 : 1e3;
  std::ostringstream text;
  const int digits = scale * mean >= 100 ? 0 : scale * mean >= 10 ? 1 : 2;
  text << std::fixed << std::setprecision(digits) << scale * mean << " ± "
       << scale * deviation << (mean >= 1 ? " s" : " ms");
  return number_cell(mean, text.str());
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

std::string Contender::mechanism() const {
  return Chosen::from(experiment.model.attention, "model.attention").name;
}

std::string Contender::shape() const {
  return std::to_string(experiment.model.layers) + " x " +
         std::to_string(experiment.model.heads);
}

std::vector<Comparison> read_comparisons(const std::vector<std::string>& folders) {
  std::vector<Contender> contenders;
  for (const std::string& folder : folders) {
    if (exists(folder + "/arena.json")) {
      for (Contender& contender : entries_in(folder)) {
        if (folders.size() > 1)
          contender.entry.name = name_of(folder) + ": " + contender.entry.name;
        contenders.push_back(std::move(contender));
      }
    } else {
      require(exists(folder + "/config.yaml"), folder,
              " is no run and no arena: it has neither config.yaml nor arena.json");
      add_run(contenders, run_in(folder));
    }
  }
  std::vector<Comparison> all;
  for (Contender& contender : contenders) {
    const auto same = std::ranges::find_if(all, [&](Comparison& comparison) {
      return have_one_task(comparison.contenders.front(), contender);
    });
    Comparison& comparison = same == all.end() ? all.emplace_back() : *same;
    comparison.contenders.push_back(std::move(contender));
  }
  for (Comparison& comparison : all) {
    comparison.facts = facts_of(comparison.contenders);
    for (const Contender& contender : comparison.contenders) {
      const ArenaRun* const run = whole_run(contender.entry);
      if (!run) continue;
      comparison.references = run->references;
      if (!run->measures.empty()) comparison.measure = run->measures.back().first;
      break;
    }
  }
  return all;
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
    return number_cell(value, bytes_text(value));
  };
  constexpr auto time = [](double value) {
    return number_cell(value, duration(value));
  };
  std::vector<Number> numbers = {
      {{"test loss", "cross-entropy on the test set", Best::least},
       [](const ArenaRun& run) { return run.loss; },
       [](double value) { return number_cell(value, number_text(value)); }},
      {{"runs", "seeds that came to their end"},
       [](const ArenaRun&) { return 1.0; },
       nullptr},
      {{"best step", "of training, by the validation set"},
       [](const ArenaRun& run) { return static_cast<double>(run.best_step); },
       whole},
      {{"tokens/s", "in training, without evaluations and checkpoints", Best::most},
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
  if (std::ranges::all_of(comparison.contenders, [](const Contender& contender) {
        return contender.entry.runs.size() == 1;
      }))
    std::erase_if(numbers, [](const Number& number) { return !number.cell; });
  for (const Number& number : numbers) table.columns.push_back(number.column);
  const bool has_latency = std::ranges::any_of(
      comparison.contenders,
      [](const Contender& contender) { return contender.entry.latency.has_value(); });
  if (has_latency) {
    table.columns.push_back(
        {"latency",
         "mean ± standard deviation of the forward passes over random "
         "sequences of full length, one on the CPU, 32 on a GPU",
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
      row.push_back(latency_cell(entry.latency));
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

Table run_table(const std::vector<Comparison>& comparisons) {
  Table table;
  for (const char* const title : {"entry",
                                  "seed",
                                  "folder",
                                  "task",
                                  "accuracy",
                                  "loss",
                                  "answers",
                                  "best_step",
                                  "tokens_per_second",
                                  "peak_bytes",
                                  "parameters",
                                  "flops",
                                  "checkpoint_bytes",
                                  "seconds",
                                  "latency_seconds",
                                  "latency_deviation",
                                  "latency_batch",
                                  "latency_length",
                                  "latency_threads",
                                  "forward_flops"})
    table.columns.push_back({.title = title});
  std::vector<std::string> names;
  for (const Comparison& comparison : comparisons)
    for (const std::string& name : measures(comparison))
      if (name != "accuracy" && std::ranges::find(names, name) == names.end())
        names.push_back(name);
  for (const std::string& name : names) table.columns.push_back({.title = name});
  table.columns.push_back({.title = "refused"});
  const auto add_row = [&](const Contender& contender, const ArenaRun& run) {
    Row row = {{contender.name()},
               {std::to_string(run.seed)},
               {run.folder},
               {contender.experiment.task.name}};
    const auto add = [&](double value, bool is_known = true) {
      const bool shown = run.refused.empty() && is_known && !std::isnan(value);
      row.push_back({.text = shown ? exact(value) : ""});
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
    const bool timed = contender.entry.latency.has_value();
    const Latency latency = contender.entry.latency.value_or(Latency());
    add(latency.timing.mean, timed);
    add(latency.timing.deviation, timed);
    add(static_cast<double>(latency.batch), timed);
    add(static_cast<double>(latency.length), timed);
    add(static_cast<double>(latency.threads), timed);
    add(static_cast<double>(latency.flops), timed);
    for (const std::string& name : names) add(measure_of(run, name));
    row.push_back({.text = run.refused});
    table.rows.push_back(row);
  };
  for (const Comparison& comparison : comparisons)
    for (const Contender& contender : comparison.contenders)
      for (const ArenaRun& run : contender.entry.runs) add_row(contender, run);
  return table;
}

std::vector<std::string> refusals(const Comparison& comparison) {
  std::vector<std::string> lines;
  for (const Contender& contender : comparison.contenders) {
    for (const ArenaRun& run : contender.entry.runs)
      if (!run.refused.empty())
        lines.push_back(contender.name() + ", seed " + std::to_string(run.seed) + ": " +
                        run.refused);
    if (!contender.entry.untimed.empty())
      lines.push_back(contender.name() + ", latency: " + contender.entry.untimed);
  }
  return lines;
}

std::string bytes_text(double bytes) {
  std::string text = short_number(bytes);
  if (std::isdigit(static_cast<unsigned char>(text.back()))) return text + " B";
  return text.insert(text.size() - 1, " ") + "B";
}

std::string time_text(double seconds) {
  std::ostringstream text;
  text << std::setprecision(3) << (seconds >= 1 ? seconds : 1e3 * seconds)
       << (seconds >= 1 ? " s" : " ms");
  return text.str();
}

}  // namespace longspan::report
