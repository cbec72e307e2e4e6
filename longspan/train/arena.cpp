#include "longspan/train/arena.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/whole_file.h"
#include "longspan/train/history.h"
#include "longspan/train/stop.h"

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

std::string sampled_path(const ArenaRun& run, int64_t samples) {
  return run.folder + "/samples-" + std::to_string(samples) + ".json";
}

// Judges the best of a run by several passes, once.
void judge_sampled(const ArenaRun& run, int64_t samples) {
  const std::string path = sampled_path(run, samples);
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
}

void read_sampled(ArenaRun& run, int64_t samples) {
  const std::string path = sampled_path(run, samples);
  try {
    run.sampled = json::parse(read_file(path)).get<std::vector<double>>();
  } catch (const json::exception&) {
    fail(path, " is not a list of numbers");
  }
}

std::string entry_folder(const std::string& folder, const std::string& entry) {
  return folder + "/" + folder_name(entry);
}

std::string latency_path(const std::string& folder, const std::string& entry) {
  return entry_folder(folder, entry) + "/latency.json";
}

std::optional<Latency> read_latency(const std::string& path) {
  if (!exists(path)) return {};
  try {
    const auto read = json::parse(read_file(path));
    return Latency{.timing = {.mean = read.at("seconds"),
                              .deviation = read.at("deviation"),
                              .peak_bytes = read.at("peak_bytes")},
                   .passes = read.at("passes"),
                   .batch = read.at("batch"),
                   .length = read.at("length"),
                   .flops = read.at("flops")};
  } catch (const json::exception&) {
    fail(path, " is not a latency");
  }
}

nlohmann::ordered_json json_of(const Latency& latency) {
  return {{"seconds", latency.timing.mean},
          {"deviation", latency.timing.deviation},
          {"passes", latency.passes},
          {"batch", latency.batch},
          {"length", latency.length},
          {"flops", latency.flops},
          {"peak_bytes", latency.timing.peak_bytes}};
}

// Of the best of a run, measured once.
std::optional<Latency> measured_latency(const std::string& path, const ArenaRun& run,
                                        int64_t passes) {
  const auto kept = read_latency(path);
  if (passes == 0 || (kept && kept->passes == passes)) return kept;
  const TrainedModel trained = open_run(run.folder);
  torch::manual_seed(1);
  const Latency found =
      latency(trained.model, trained.task, device_of(trained.experiment.train),
              {.passes = passes, .carry = &trained.carry});
  write_whole(path, json_of(found).dump() + "\n");
  return found;
}

// One training to be.
struct Job {
  ArenaEntry* entry;
  int64_t seed;
  std::string folder = {}, title = {};
  std::string refused = {};
  bool is_done = false;  // trained, read or refused

  bool is_trained() const { return exists(folder + "/result.json"); }
};

// Returns the signal that ended it, or 0.
int train_in_turn(const ArenaOptions& options, std::vector<Job>& jobs, bool quiet,
                  const std::function<void(const std::string&)>& tell) {
  for (Job& job : jobs) {
    try {
      if (!job.is_trained()) {
        tell(job.title);
        const RunResult result =
            run_experiment(experiment_of(options, *job.entry, job.seed),
                           {.folder = job.folder, .resume = "auto", .quiet = quiet});
        if (result.training.signal != 0) return result.training.signal;
      }
    } catch (const Error& error) {
      job.refused = error.what();
      tell(job.title + ": " + job.refused);
    }
    job.is_done = true;
  }
  return 0;
}

// The last line of what a process complained of.
std::string complaint(const std::string& path) {
  std::string text = exists(path) ? read_file(path) : std::string();
  while (text.ends_with('\n')) text.pop_back();
  text = text.substr(text.rfind('\n') + 1);
  constexpr std::string_view kProgram = "longspan: ";
  if (text.starts_with(kProgram)) text = text.substr(kProgram.size());
  return text;
}

// Trains as a process of its own, which writes what it complains of into `complaints`.
pid_t start_training(std::vector<std::string> words, const std::string& complaints) {
  const auto before = getpid();
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t process = fork();
  require(process >= 0, "cannot start a process: ", std::strerror(errno));
  if (process > 0) return process;
  // Between fork and exec only what is safe in a signal handler.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != before) _exit(1);
  const int out = open("/dev/null", O_WRONLY);
  const int errors = open(complaints.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (out < 0 || errors < 0 || dup2(out, 1) < 0 || dup2(errors, 2) < 0) _exit(1);
  execvp(pointers[0], pointers.data());
  _exit(127);
}

class Processes {
 public:
  Processes(const ArenaOptions& options, const std::string& program,
            const std::function<void(const std::string&)>& tell)
      : options_(options), program_(program), tell_(tell) {
    // The threads of all together are those of this process.
    threads_ = std::max<int64_t>(1, at::get_num_threads() / options.processes);
  }

  // As train_in_turn().
  int train(std::vector<Job>& jobs) {
    const StopSignals signals;
    size_t next = 0;
    while (next < jobs.size() || !running_.empty()) {
      if (StopSignals::noted() != 0 && signal_ == 0) {
        signal_ = StopSignals::noted();
        for (const auto& [process, job] : running_) kill(process, signal_);
      }
      if (signal_ != 0) next = jobs.size();
      while (next < jobs.size() && running_.size() < most()) start(jobs[next++]);
      collect();
      constexpr useconds_t kPause = 20'000;
      if (running_.size() >= most() || next == jobs.size()) usleep(kPause);
    }
    return signal_;
  }

 private:
  size_t most() const { return static_cast<size_t>(options_.processes); }

  static std::string beside(const Job& job, const char* ending) {
    return job.folder + ending;
  }

  void start(Job& job) {
    if (job.is_trained()) {
      job.is_done = true;
      return;
    }
    tell_(job.title);
    std::error_code failure;
    std::filesystem::create_directories(job.folder.substr(0, job.folder.rfind('/')),
                                        failure);
    require(!failure, "cannot make the folder of ", job.folder, ": ",
            failure.message());
    Experiment experiment = experiment_of(options_, *job.entry, job.seed);
    write_whole(beside(job, ".yaml"), config_text(fields(experiment)));
    running_[start_training(
        {program_, "train", "-c", beside(job, ".yaml"), "--out", job.folder, "--resume",
         "auto", "--threads", std::to_string(threads_), "--quiet"},
        beside(job, ".errors"))] = &job;
  }

  void collect() {
    for (auto at = running_.begin(); at != running_.end();) {
      int status = 0;
      if (waitpid(at->first, &status, WNOHANG) == 0) {
        ++at;
        continue;
      }
      finish(*at->second, status);
      at = running_.erase(at);
    }
  }

  void finish(Job& job, int status) {
    constexpr int kBySignal = 128;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    const std::string errors = beside(job, ".errors");
    if (WIFEXITED(status) && code == 0 && job.is_trained()) {
      job.is_done = true;
    } else if (WIFEXITED(status) && code > kBySignal) {  // saved and stopped
      if (signal_ == 0) signal_ = code - kBySignal;
    } else if (signal_ == 0) {
      job.refused = WIFSIGNALED(status) ? "its process was killed by signal " +
                                              std::to_string(WTERMSIG(status))
                                        : complaint(errors);
      if (job.refused.empty())
        job.refused = program_ + " ended with exit code " + std::to_string(code);
      job.is_done = true;
      tell_(job.title + ": " + job.refused);
    }
    unlink(errors.c_str());
  }

  const ArenaOptions& options_;
  const std::string& program_;
  const std::function<void(const std::string&)>& tell_;
  int64_t threads_ = 1;
  std::map<pid_t, Job*> running_;
  int signal_ = 0;
};

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
      experiment_of(options, entries.back(), 1);
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
  std::vector<Job> jobs;
  for (const int64_t seed : seeds_of(options))
    for (ArenaEntry& entry : all.entries)
      jobs.push_back(
          {.entry = &entry,
           .seed = seed,
           .folder = entry_folder(folder, entry.name) + "/seed-" + std::to_string(seed),
           .title = entry.name + ", seed " + std::to_string(seed)});
  if (options.processes > 1) {
    require(!program.empty(), "arena.processes, ", options.processes,
            ", needs the program that is to be started; must be 1");
    all.signal = Processes(options, program, tell).train(jobs);
  } else {
    all.signal = train_in_turn(options, jobs, quiet, tell);
  }
  for (const Job& job : jobs) {
    if (!job.is_done) continue;
    ArenaRun run{.folder = job.folder, .seed = job.seed, .refused = job.refused};
    try {
      if (run.refused.empty()) {
        run = read_run(job.folder);
        run.seed = job.seed;
        if (job.entry->samples > 0 && all.signal == 0) {
          judge_sampled(run, job.entry->samples);
          read_sampled(run, job.entry->samples);
        }
      }
    } catch (const Error& error) {
      run.refused = error.what();
      tell(job.title + ": " + run.refused);
    }
    job.entry->runs.push_back(run);
  }
  for (ArenaEntry& entry : all.entries)
    if (const ArenaRun* const run = whole_run(entry); run && all.signal == 0)
      entry.latency = measured_latency(latency_path(folder, entry.name), *run,
                                       options.latency_passes);
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
    for (const ArenaRun& run : entry.runs) {
      nlohmann::ordered_json one = {{"seed", run.seed},
                                    {"folder", run.folder.substr(folder.size() + 1)}};
      if (!run.refused.empty()) {
        one["refused"] = run.refused;
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
        if (run.refused.empty()) run = read_run(run.folder);
        run.seed = given.at("seed");
        if (given.contains("sampled")) read_sampled(run, entry.samples);
        entry.runs.push_back(run);
      }
      entry.latency = read_latency(latency_path(folder, entry.name));
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
