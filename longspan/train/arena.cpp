#include "longspan/train/arena.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/thrown.h"
#include "longspan/base/whole_file.h"
#include "longspan/train/arena_jobs.h"
#include "longspan/train/environment.h"
#include "longspan/train/history.h"

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

// Stands for the best checkpoint of a run: what was measured of another is not of it.
uint32_t best_of(const std::string& folder) {
  return crc32c(read_file(folder + "/best/DONE"));
}

std::string sampled_path(const ArenaRun& run, int64_t samples) {
  return run.folder + "/samples-" + std::to_string(samples) + ".json";
}

// What `path` holds, if that is of the best checkpoint of the run.
json kept_of_best(const std::string& path, const std::string& folder) {
  if (!exists(path)) return {};
  try {
    json kept = json::parse(read_file(path));
    if (kept.at("checkpoint") == best_of(folder)) return kept;
  } catch (const json::exception&) {
    fail(path, " is not what an arena wrote");
  }
  return {};
}

void read_sampled(ArenaRun& run, int64_t samples) {
  if (samples == 0) return;
  const json kept = kept_of_best(sampled_path(run, samples), run.folder);
  if (!kept.is_null()) run.sampled = kept.at("numbers").get<std::vector<double>>();
}

// Judges the best of a run by several passes, once.
void judge_sampled(ArenaRun& run, int64_t samples) {
  read_sampled(run, samples);
  if (!run.sampled.empty()) return;
  TrainedModel trained = open_run(run.folder);
  const Task task = open_task(trained.experiment.task);
  const auto objective = trained.model.objective(task);
  const Dataset& test = task.split("test");
  const TrainOptions& train = trained.experiment.train;
  const int64_t batch = train.evaluate_batch > 0 ? train.evaluate_batch
                        : train.micro_batch > 0  ? train.micro_batch
                                                 : train.batch;
  const Score judged = *score(*objective, test,
                              {.batch = batch,
                               .device = device_of(train),
                               .samples = samples,
                               .carry = &trained.carry});
  run.sampled = {judged.accuracy, judged.loss};
  for (const auto& [name, value] : objective->measures(test, judged))
    run.sampled.push_back(value);
  const json out = {{"checkpoint", best_of(run.folder)}, {"numbers", run.sampled}};
  write_whole(sampled_path(run, samples), out.dump() + "\n");
}

std::string entry_folder(const std::string& folder, const std::string& entry) {
  return folder + "/" + folder_name(entry);
}

std::string latency_path(const std::string& folder, const std::string& entry) {
  return entry_folder(folder, entry) + "/latency.json";
}

Latency latency_from(const json& kept) {
  return {.timing = {.mean = kept.at("seconds"),
                     .deviation = kept.at("deviation"),
                     .peak_bytes = kept.at("peak_bytes")},
          .passes = kept.at("passes"),
          .batch = kept.at("batch"),
          .length = kept.at("length"),
          .flops = kept.at("flops"),
          .threads = kept.at("threads")};
}

nlohmann::ordered_json json_of(const Latency& latency) {
  return {{"seconds", latency.timing.mean}, {"deviation", latency.timing.deviation},
          {"passes", latency.passes},       {"batch", latency.batch},
          {"length", latency.length},       {"flops", latency.flops},
          {"threads", latency.threads},     {"peak_bytes", latency.timing.peak_bytes}};
}

std::optional<Latency> read_latency(const std::string& path, const ArenaRun& run) try {
  const json kept = kept_of_best(path, run.folder);
  if (kept.is_null()) return {};
  return latency_from(kept);
} catch (const json::exception&) {
  fail(path, " is not a latency");
}

// Of the best of a run, measured once on each machine.
std::optional<Latency> measured_latency(const std::string& path, const ArenaRun& run,
                                        int64_t passes) {
  const torch::Device device = device_of(stored_experiment(run.folder).train);
  const json machine = environment(device), kept = kept_of_best(path, run.folder);
  const bool is_it = !kept.is_null() && kept.value("machine", json()) == machine;
  if (is_it && (passes == 0 || kept.value("passes", 0) == passes))
    return latency_from(kept);
  if (passes == 0) return {};
  const TrainedModel trained = open_run(run.folder);
  torch::manual_seed(1);
  const Latency found = latency(trained.model, trained.task, device,
                                {.passes = passes, .carry = &trained.carry});
  auto out = json_of(found);
  out["checkpoint"] = best_of(run.folder);
  out["machine"] = machine;
  write_whole(path, out.dump() + "\n");
  return found;
}

// Fills in what the trainings gave.
void collect_runs(const std::vector<ArenaJob>& jobs, ArenaResult& all) {
  size_t at = 0;
  for (ArenaEntry& entry : all.entries) entry.runs.clear();
  while (at < jobs.size())
    for (ArenaEntry& entry : all.entries) {
      const ArenaJob& job = jobs[at++];
      ArenaRun run{.folder = job.folder, .refused = job.refused};
      try {
        if (run.refused.empty()) run = run_so_far(job.folder);
      } catch (const Error& error) {
        run.refused = error.what();
      }
      run.seed = job.experiment.train.seed;
      entry.runs.push_back(run);
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
  all.push_back({"arena.processes",
                 &options.processes,
                 "trainings at once, each a process with its share of the threads",
                 {},
                 1,
                 1024});
  all.push_back({"arena.latency_passes",
                 &options.latency_passes,
                 "forward passes over random sequences of full length, one sequence on "
                 "the CPU and 32 on a GPU, that are timed of each entry; 0: none",
                 {},
                 0,
                 1e6});
  return all;
}

std::string arena_options_path(const std::string& folder) {
  return folder + "/arena.yaml";
}

ArenaRun read_run(const std::string& folder) {
  ArenaRun run{.folder = folder};
  const std::string path = folder + "/result.json";
  static const std::set<std::string> known = {"loss", "accuracy", "answers"};
  try {
    const auto result = nlohmann::ordered_json::parse(read_file(path));
    const auto& best = result.at("best");
    const auto& test = best.at("test");
    run.best_step = best.at("step");
    run.accuracy = test.at("accuracy");
    run.loss = test.at("loss");
    run.answers = test.at("answers");
    for (const auto& [name, value] : test.items())
      if (!known.contains(name)) run.measures.emplace_back(name, value.get<double>());
    run.seconds = result.at("seconds");
    run.tokens_per_second = tokens_per_second(read_history(folder));
    run.peak_bytes = result.at("peak_bytes");
    run.parameters = result.at("parameters");
    run.flops = result.at("flops");
    for (const auto& one : result.value("references", json::array()))
      run.references.push_back({one.at("name"), one.at("accuracy")});
    run.facts = result.at("facts").get<std::vector<std::string>>();
  } catch (const json::exception&) {
    fail(path, " is not the result of a training");
  }
  for (const char* part : {"model", "optimizer"}) {
    struct stat file;
    const std::string name = folder + "/best/" + part + ".safetensors";
    if (stat(name.c_str(), &file) == 0) run.checkpoint_bytes += file.st_size;
  }
  return run;
}

ArenaRun run_so_far(const std::string& folder) {
  if (exists(folder + "/result.json")) return read_run(folder);
  const auto& train = read_history(folder).train;
  return {.folder = folder,
          .refused = train.empty() ? "not trained yet"
                                   : "not at its end, but at step " +
                                         std::to_string(train.back().step),
          .goes_on = true};
}

const ArenaRun* whole_run(const ArenaEntry& entry) {
  const auto found = std::ranges::find_if(
      entry.runs, [](const ArenaRun& run) { return run.refused.empty(); });
  return found == entry.runs.end() ? nullptr : &*found;
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
      const ArenaEntry& entry = entries.back();
      const Experiment experiment = experiment_of(options, entry, 1);
      require(entry.samples == 0 || draws_keys(experiment.model), "arena.entries, ",
              entry.name, ": samples need a mechanism that draws the keys it meets, ",
              "such as ssa");
    }
    return entries;
  });
}

ArenaResult run_arena(const ArenaOptions& options, const std::string& folder,
                      bool quiet, const std::function<void(const std::string&)>& tell,
                      const std::string& program) {
  ArenaResult all{.entries = arena_entries(options)};
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  require(!failure, "cannot make the folder ", folder, ": ", failure.message());
  std::vector<ArenaJob> jobs;
  for (const int64_t seed : seeds_of(options))
    for (const ArenaEntry& entry : all.entries)
      jobs.push_back(
          {.experiment = experiment_of(options, entry, seed),
           .folder = entry_folder(folder, entry.name) + "/seed-" + std::to_string(seed),
           .title = entry.name + ", seed " + std::to_string(seed)});
  const auto keep = [&] {
    collect_runs(jobs, all);
    write_whole(folder + "/arena.json", arena_json(all.entries, folder));
  };
  // What is there stays as it is where nothing can go on.
  refuse_begun(jobs);
  const auto is_refused = [](const ArenaJob& job) { return !job.refused.empty(); };
  const ArenaJob& first = jobs.front();
  if (std::ranges::all_of(jobs, is_refused)) fail(first.title, ": ", first.refused);
  for (const ArenaJob& job : jobs)
    if (is_refused(job)) tell(job.title + ": " + job.refused);
  ArenaOptions kept = options;
  write_whole(arena_options_path(folder), config_text(fields(kept)));
  keep();
  all.signal = train_jobs({.processes = options.processes,
                           .program = program,
                           .quiet = quiet,
                           .tell = tell,
                           .refused = keep},
                          jobs);
  keep();
  if (all.signal != 0) return all;
  // What fails is told, and the rest done all the same.
  const auto attempt = [&](const std::string& what, std::string& trouble,
                           const auto& work) {
    try {
      work();
    } catch (...) {
      trouble = message_of(std::current_exception());
      tell(what + ": " + trouble);
    }
  };
  for (ArenaEntry& entry : all.entries)
    for (ArenaRun& run : entry.runs)
      if (entry.samples > 0 && run.refused.empty())
        attempt(entry.name + ", seed " + std::to_string(run.seed), run.refused,
                [&] { judge_sampled(run, entry.samples); });
  for (ArenaEntry& entry : all.entries)
    if (const ArenaRun* const run = whole_run(entry))
      attempt(entry.name + ", latency", entry.untimed, [&] {
        entry.latency = measured_latency(latency_path(folder, entry.name), *run,
                                         options.latency_passes);
      });
  write_whole(folder + "/arena.json", arena_json(all.entries, folder));
  return all;
}

std::string arena_json(const std::vector<ArenaEntry>& entries,
                       const std::string& folder) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ArenaEntry& entry : entries) {
    nlohmann::ordered_json out = {{"name", entry.name}};
    for (const auto& [name, value] : entry.values) out["values"][name] = value.text();
    if (entry.samples > 0) out["samples"] = entry.samples;
    if (entry.latency) out["latency"] = json_of(*entry.latency);
    if (!entry.untimed.empty()) out["untimed"] = entry.untimed;
    for (const ArenaRun& run : entry.runs) {
      nlohmann::ordered_json one = {{"seed", run.seed},
                                    {"folder", run.folder.substr(folder.size() + 1)}};
      if (!run.refused.empty()) {
        one[run.goes_on ? "unfinished" : "refused"] = run.refused;
      } else {
        one["best_step"] = run.best_step;
        one["accuracy"] = run.accuracy;
        one["loss"] = run.loss;
        for (const auto& [name, value] : run.measures) one[name] = value;
        for (size_t i = 0; i < run.sampled.size(); ++i)
          one["sampled"][i < 2 ? (i == 0 ? "accuracy" : "loss")
                               : run.measures.at(i - 2).first] = run.sampled[i];
        one["tokens_per_second"] = run.tokens_per_second;
        one["peak_bytes"] = run.peak_bytes;
        one["parameters"] = run.parameters;
        one["checkpoint_bytes"] = run.checkpoint_bytes;
        one["flops"] = run.flops;
        one["seconds"] = run.seconds;
      }
      out["runs"].push_back(one);
    }
    list.push_back(out);
  }
  return list.dump(2) + "\n";
}

std::vector<ArenaEntry> read_arena(const std::string& folder) {
  const std::string path = folder + "/arena.json";
  std::vector<ArenaEntry> entries;
  try {
    for (const auto& one : nlohmann::ordered_json::parse(read_file(path))) {
      ArenaEntry entry{.name = one.at("name"), .samples = one.value("samples", 0)};
      const auto values = one.value("values", nlohmann::ordered_json::object());
      for (const auto& [name, value] : values.items())
        entry.values.emplace_back(name, Value::parse(value.get<std::string>()));
      for (const auto& given : one.value("runs", json::array())) {
        const std::string name = given.at("folder");
        ArenaRun run{.folder = folder + "/" + name,
                     .refused = given.value("refused", "")};
        if (run.refused.empty()) run = run_so_far(run.folder);
        run.seed = given.at("seed");
        if (run.refused.empty()) read_sampled(run, entry.samples);
        entry.runs.push_back(run);
      }
      entry.untimed = one.value("untimed", "");
      if (const ArenaRun* const run = whole_run(entry))
        entry.latency = read_latency(latency_path(folder, entry.name), *run);
      entries.push_back(entry);
    }
  } catch (const json::exception&) {
    fail(path, " is not what an arena wrote");
  }
  return entries;
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
