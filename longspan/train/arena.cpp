#include "longspan/train/arena.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/whole_file.h"

namespace longspan {
namespace {

using nlohmann::json;

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// A folder's name: letters and digits as they are, all else one dash.
std::string folder_name(const std::string& name) {
  std::string folder;
  for (const char letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) || letter == '_')
      folder += letter;
    else if (!folder.empty() && folder.back() != '-')
      folder += '-';
  }
  while (folder.ends_with('-')) folder.pop_back();
  return folder;
}

ArenaEntry entry_from(const Value& value) {
  if (const auto* mechanism = value.as<std::string>())
    return {.name = *mechanism, .values = {{"model.attention", Value(*mechanism)}}};
  const auto* map = value.as<Value::Map>();
  require(map != nullptr,
          "arena.entries: an entry must be a mechanism or {name: .., key: value, ..}, "
          "got ",
          value.text());
  ArenaEntry entry;
  for (const auto& [key, given] : *map) {
    if (key == "name") {
      const auto* name = given.as<std::string>();
      require(name != nullptr, "arena.entries: name must be a word, got ",
              given.text());
      entry.name = *name;
    } else if (key == "samples") {
      const auto* samples = given.as<int64_t>();
      require(samples && *samples >= 1,
              "arena.entries: samples must be a whole number of 1 or more, got ",
              given.text());
      entry.samples = *samples;
    } else {
      entry.values.emplace_back(key, given);
    }
  }
  require(!folder_name(entry.name).empty(),
          "arena.entries: an entry needs a name, got ", value.text());
  return entry;
}

std::vector<int64_t> seeds_of(const ArenaOptions& options) {
  const auto* list = options.seeds.as<Value::List>();
  require(list && !list->empty(), "arena.seeds must be a list such as [1, 2, 3], got ",
          options.seeds.text());
  std::vector<int64_t> seeds;
  for (const Value& value : *list) {
    const auto* seed = value.as<int64_t>();
    require(seed && *seed >= 0, "arena.seeds must be whole numbers, got ",
            value.text());
    seeds.push_back(*seed);
  }
  return seeds;
}

constexpr const char* kKnown[] = {"loss", "accuracy", "answers"};

void read_result(ArenaRun& run) {
  const std::string path = run.folder + "/result.json";
  try {
    const auto result = nlohmann::ordered_json::parse(read_file(path));
    const auto& best = result.at("best");
    const auto& test = best.at("test");
    run.best_step = best.at("step");
    run.accuracy = test.at("accuracy");
    run.loss = test.at("loss");
    for (const auto& [name, value] : test.items())
      if (std::ranges::find(kKnown, name) == std::end(kKnown))
        run.measures.emplace_back(name, value.get<double>());
    run.seconds = result.at("seconds");
    run.tokens_per_second =
        result.at("tokens").get<double>() / std::max(1e-9, run.seconds);
    run.peak_bytes = result.at("peak_bytes");
    run.parameters = result.at("parameters");
    run.flops = result.at("flops");
  } catch (const json::exception&) {
    fail(path, " is not the result of a training");
  }
}

// Judges the best of a run by several passes, once.
void read_sampled(ArenaRun& run, int64_t samples) {
  const std::string path = run.folder + "/samples-" + std::to_string(samples) + ".json";
  if (!exists(path)) {
    TrainedModel trained = open_run(run.folder);
    const Task task = open_task(trained.experiment.task);
    const auto objective = trained.model.objective(task);
    const Dataset& test = task.split("test");
    const TrainOptions& train = trained.experiment.train;
    const int64_t batch = train.evaluate_batch > 0 ? train.evaluate_batch
                          : train.micro_batch > 0  ? train.micro_batch
                                                   : train.batch;
    const Score judged =
        *score(*objective, test,
               {.batch = batch, .device = device_of(train), .samples = samples});
    json numbers = {judged.accuracy, judged.loss};
    for (const auto& [name, value] : objective->measures(test, judged))
      numbers.push_back(value);
    write_whole(path, numbers.dump() + "\n");
  }
  try {
    run.sampled = json::parse(read_file(path)).get<std::vector<double>>();
  } catch (const json::exception&) {
    fail(path, " is not a list of numbers");
  }
}

}  // namespace

Fields fields(ArenaOptions& options) {
  Fields all = fields(options.experiment);
  all.push_back({"arena.seeds", &options.seeds, "every entry is trained with each"});
  all.push_back({"arena.entries", &options.entries,
                 "what is compared: mechanisms, or {name: .., key: value, ..} with "
                 "other values of any keys; samples: K also judges by the mean of K "
                 "passes that sample"});
  return all;
}

Experiment experiment_of(const ArenaOptions& options, const ArenaEntry& entry,
                         int64_t seed) {
  Experiment experiment = options.experiment;
  ConfigReader reader(fields(experiment));
  for (const auto& [name, value] : entry.values)
    reader.set(name, value, "arena.entries, " + entry.name + ": ");
  experiment.train.seed = seed;
  return experiment;
}

std::vector<ArenaEntry> arena_entries(const ArenaOptions& options) {
  return argument([&] {
    const auto* list = options.entries.as<Value::List>();
    require(list && !list->empty(),
            "arena.entries must be a list of what is compared, got ",
            options.entries.text());
    seeds_of(options);
    std::vector<ArenaEntry> entries;
    std::set<std::string> names;
    for (const Value& value : *list) {
      entries.push_back(entry_from(value));
      require(names.insert(folder_name(entries.back().name)).second, "arena.entries: '",
              entries.back().name, "' is there twice");
      experiment_of(options, entries.back(), 1);
    }
    return entries;
  });
}

ArenaResult run_arena(const ArenaOptions& options, const std::string& folder,
                      bool quiet, const std::function<void(const std::string&)>& tell) {
  ArenaResult all{.entries = arena_entries(options)};
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  require(!failure, "cannot make the folder ", folder, ": ", failure.message());
  for (const int64_t seed : seeds_of(options)) {
    for (ArenaEntry& entry : all.entries) {
      ArenaRun run{.folder = folder + "/" + folder_name(entry.name) + "/seed-" +
                             std::to_string(seed),
                   .seed = seed};
      const std::string title = entry.name + ", seed " + std::to_string(seed);
      try {
        if (!exists(run.folder + "/result.json")) {
          tell(title);
          const RunResult result =
              run_experiment(experiment_of(options, entry, seed),
                             {.folder = run.folder, .resume = "auto", .quiet = quiet});
          all.signal = result.training.signal;
          if (all.signal != 0) return all;
        }
        read_result(run);
        if (entry.samples > 0) read_sampled(run, entry.samples);
      } catch (const Error& error) {
        run.refused = error.what();
        tell(title + ": " + run.refused);
      }
      entry.runs.push_back(run);
    }
  }
  return all;
}

Spread spread_of(const ArenaEntry& entry,
                 const std::function<double(const ArenaRun&)>& number) {
  Spread spread;
  double sum = 0, squares = 0;
  for (const ArenaRun& run : entry.runs) {
    if (!run.refused.empty()) continue;
    sum += number(run);
    ++spread.count;
  }
  if (spread.count == 0) return spread;
  spread.mean = sum / static_cast<double>(spread.count);
  for (const ArenaRun& run : entry.runs) {
    if (!run.refused.empty()) continue;
    const double off = number(run) - spread.mean;
    squares += off * off;
  }
  if (spread.count > 1)
    spread.deviation = std::sqrt(squares / static_cast<double>(spread.count - 1));
  return spread;
}

}  // namespace longspan
