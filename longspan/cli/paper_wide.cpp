// Tables 8 to 10 of Brown et al. 2022, arXiv:2210.00640: sizes and latencies of wide
// and deep models.

#include <cmath>
#include <iostream>
#include <memory>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include "longspan/base/error.h"
#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"
#include "longspan/base/words.h"
#include "longspan/cli/arguments.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/cli/paper.h"
#include "longspan/cli/paper_table.h"
#include "longspan/cli/published.h"
#include "longspan/cli/wide_models.h"

namespace longspan::cli {
namespace {

struct TableOptions {
  WideTable table;
  std::string tasks, mechanisms, device;
  int64_t passes = 100, batch = 1;
  bool json = false;
};

// What a deep and a wide model have, or why not.
struct Pair {
  const WideMechanism& mechanism;
  const WideTask& task;
  Experiment deep = wide_experiment(mechanism, task, /*deep=*/true);
  Experiment wide = wide_experiment(mechanism, task, /*deep=*/false);
  WidePair ours = {};
  std::string refused = {};
};

double mebibytes(const Experiment& experiment) {
  constexpr double kBytes = 12;  // of a parameter: itself and two moments of Adam
  const auto model = make_model(experiment, outline_task(experiment.task));
  return kBytes * static_cast<double>(parameter_count(model.module())) / (1 << 20);
}

// Mean milliseconds of a forward pass over random sequences of full length, deep and
// wide in turn.
WidePair milliseconds(const Pair& pair, const TableOptions& options,
                      torch::Device device) {
  const torch::NoGradGuard without_gradients;
  const Task task = outline_task(pair.deep.task);
  const TaskModel models[] = {make_model(pair.deep, task), make_model(pair.wide, task)};
  for (const TaskModel& model : models) {
    model.module().to(device);
    model.module().eval();
  }
  const auto wait = [&] {
    if (device.is_cuda()) torch::cuda::synchronize();
  };
  double seconds[] = {0, 0};
  for (int64_t number = -1; number < options.passes; ++number)  // the first warms up
    for (const size_t i : {0, 1}) {
      const Batch batch = random_batch(task, options.batch, task.longest).to(device);
      wait();
      const Spent spent = spent_on([&] {
        Pass pass;
        models[i].classifier->forward(batch.ids, batch.padding_mask(), pass);
        wait();
      });
      if (number >= 0) seconds[i] += spent.wall;
    }
  const auto mean = [&](double sum) {
    return 1e3 * sum / static_cast<double>(options.passes);
  };
  return {mean(seconds[0]), mean(seconds[1])};
}

void fill(Pair& pair, const TableOptions& options, torch::Device device) {
  try {
    if (options.table == WideTable::sizes)
      pair.ours = {mebibytes(pair.deep), mebibytes(pair.wide)};
    else
      pair.ours = milliseconds(pair, options, device);
  } catch (const Error& error) {
    pair.refused = error.what();
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    pair.refused = reason.substr(0, reason.find('\n'));
  }
}

// Those of `all` that a list names, or all of them.
template <class Row>
std::vector<const Row*> named(const std::string& option, const std::string& list,
                              std::span<const Row> all) {
  std::vector<const Row*> found;
  if (list.empty()) {
    for (const Row& row : all) found.push_back(&row);
    return found;
  }
  for (const Value& value : list_of(option, list)) {
    const auto* word = value.as<std::string>();
    const auto same = [&](const Row& row) { return word && row.name == *word; };
    const auto row = std::ranges::find_if(all, same);
    if (row == all.end()) {
      std::vector<std::string> names;
      for (const Row& one : all) names.emplace_back(one.name);
      fail(option, " must be of ", joined(names, ", "), ", got ", value.text());
    }
    found.push_back(&*row);
  }
  return found;
}

const char* unit(WideTable table) {
  return table == WideTable::sizes ? "MiB" : "milliseconds";
}

nlohmann::ordered_json json(const Pair& pair, const TableOptions& options) {
  auto cells = nlohmann::ordered_json::array();
  const WidePair printed =
      published(options.table, pair.mechanism.name, pair.task.name);
  for (const bool deep : {true, false}) {
    const auto& ours = deep ? pair.ours.deep : pair.ours.wide;
    const auto& theirs = deep ? printed.deep : printed.wide;
    const TransformerOptions& model = (deep ? pair.deep : pair.wide).model;
    nlohmann::ordered_json cell = {{"mechanism", pair.mechanism.name},
                                   {"attention", model.attention.text()},
                                   {"preset", model.preset},
                                   {"task", pair.task.name},
                                   {"shape", deep ? "deep" : "wide"},
                                   {"layers", model.layers},
                                   {"heads", model.heads},
                                   {"unit", unit(options.table)},
                                   {"ours", or_null(ours)},
                                   {"published", or_null(theirs)}};
    if (ours && theirs) cell["ratio"] = *ours / *theirs;
    if (options.table != WideTable::sizes) {
      cell["device"] = options.device;
      cell["threads"] = at::get_num_threads();
      cell["batch"] = options.batch;
      cell["passes"] = options.passes;
    }
    if (!pair.refused.empty()) cell["refused"] = pair.refused;
    cells.push_back(cell);
  }
  return cells;
}

void print(const std::vector<Pair>& pairs, const TableOptions& options) {
  const bool of_sizes = options.table == WideTable::sizes;
  TextTable lines = {{"task", "mechanism", "deep", "printed", "ratio", "wide",
                      "printed", "ratio", "deep / wide", "printed"}};
  const auto ratio = [](const auto& one, const auto& other) {
    return one && other ? std::optional(*one / *other) : std::nullopt;
  };
  for (const Pair& pair : pairs) {
    const auto& [deep, wide] = pair.ours;
    const WidePair printed =
        published(options.table, pair.mechanism.name, pair.task.name);
    lines.push_back(
        {std::string(pair.task.name), std::string(pair.mechanism.name), cell(deep, 1),
         cell(printed.deep, 0), cell(ratio(deep, printed.deep), 2), cell(wide, 1),
         cell(printed.wide, 0), cell(ratio(wide, printed.wide), 2),
         cell(ratio(deep, wide), 2), cell(ratio(printed.deep, printed.wide), 2)});
  }
  print_table(lines, /*words=*/2);
  for (const Pair& pair : pairs)
    if (!pair.refused.empty())
      std::cout << pair.task.name << ", " << pair.mechanism.name << ": " << pair.refused
                << '\n';
  if (of_sizes) {
    double most = 0;
    int64_t known = 0, close = 0;
    for (const Pair& pair : pairs) {
      const WidePair printed =
          published(options.table, pair.mechanism.name, pair.task.name);
      for (const auto& [ours, theirs] :
           {std::pair(pair.ours.deep, printed.deep), {pair.ours.wide, printed.wide}}) {
        if (!ours || !theirs) continue;
        ++known;
        const double off = std::abs(*ours - *theirs);
        most = std::max(most, off);
        close += off <= std::max(1.5, 0.02 * *theirs);
      }
    }
    std::cout
        << close << " of " << known
        << " sizes with a known printed value are within 1.5 MiB or 2 % of it; the "
        << "farthest is off by " << cell(most, 2) << " MiB\n";
    return;
  }
  double sum = 0;
  int64_t count = 0;
  for (const Pair& pair : pairs)
    if (const auto times = ratio(pair.ours.deep, pair.ours.wide)) {
      sum += *times;
      ++count;
    }
  if (count > 0)
    std::cout << "wide is " << cell(sum / static_cast<double>(count), 2)
              << " times as fast as deep in the mean of " << count
              << " pairs; printed: " << cell(published_speed_up(options.table), 1)
              << '\n';
}

void make_table(const TableOptions& options) {
  const auto tasks =
      argument([&] { return named("--tasks", options.tasks, wide_tasks()); });
  const auto mechanisms = argument(
      [&] { return named("--mechanisms", options.mechanisms, wide_mechanisms()); });
  const torch::Device device =
      options.table == WideTable::sizes
          ? torch::Device(torch::kCPU)
          : argument([&] { return usable_device(options.device); });
  torch::manual_seed(1);
  std::vector<Pair> pairs;
  for (const WideTask* const task : tasks)
    for (const WideMechanism* const mechanism : mechanisms) {
      pairs.push_back({.mechanism = *mechanism, .task = *task});
      fill(pairs.back(), options, device);
      release_cached_memory();
      if (options.json)
        for (const auto& cell : json(pairs.back(), options))
          std::cout << cell.dump() << std::endl;
    }
  if (!options.json) print(pairs, options);
  const auto is_there = [](const Pair& pair) { return pair.refused.empty(); };
  if (std::ranges::none_of(pairs, is_there)) throw Failed();
}

void add_table(CLI::App& paper, WideTable table, const char* name, const char* help,
               const char* example) {
  auto* const verb = paper.add_subcommand(name, help);
  verb->footer(
      std::string(
          "Deep models have 6 layers of 8 heads (matching: 4 of 4), wide ones a\n"
          "single layer with as many heads in all; they are those of configs/wide.\n"
          "Printed values that are not known here are left out.\n\n"
          "Example:\n  ") +
      example);
  const auto options = std::make_shared<TableOptions>();
  options->table = table;
  options->device = table == WideTable::on_gpu ? "cuda" : "cpu";
  options->batch = table == WideTable::on_gpu ? 32 : 1;
  verb->add_option("--tasks", options->tasks,
                   "of imdb-token, imdb-byte, listops, matching, separated by commas; "
                   "else all");
  verb->add_option("--mechanisms", options->mechanisms,
                   "as printed, separated by commas; else all");
  if (table != WideTable::sizes) {
    const auto count = [&](const char* option, int64_t& value, const char* text) {
      verb->add_option(option, value, text)
          ->capture_default_str()
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
    };
    count("--passes", options->passes, "forward passes whose mean is taken");
    count("--batch", options->batch, "sequences, or pairs, of a pass");
    verb->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  }
  verb->add_flag("--json", options->json, "a line of JSON for each cell");
  add_threads(*verb);
  verb->callback([=] { make_table(*options); });
}

}  // namespace

void add_wide_tables(CLI::App& paper) {
  add_table(
      paper, WideTable::sizes, "wide-table8",
      "table 8 of Brown et al. 2022, arXiv:2210.00640: sizes in MiB of deep and wide "
      "models with ten mechanisms on four tasks, 12 bytes a parameter",
      "longspan paper wide-table8 --tasks listops --mechanisms Transformer,Linear");
  add_table(paper, WideTable::on_cpu, "wide-table9",
            "table 9 of Brown et al. 2022, arXiv:2210.00640: milliseconds of a forward "
            "pass of such models over one sequence of full length",
            "longspan paper wide-table9 --tasks imdb-byte --passes 10");
  add_table(
      paper, WideTable::on_gpu, "wide-table10",
      "table 10 of Brown et al. 2022, arXiv:2210.00640: the same on a GPU, over 32 "
      "sequences",
      "longspan paper wide-table10 --json > table10.jsonl");
}

}  // namespace longspan::cli
