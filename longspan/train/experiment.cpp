#include "longspan/train/experiment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/progress.h"
#include "longspan/base/read_file.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/data/pairs.h"
#include "longspan/models/generate.h"
#include "longspan/train/checkpoint.h"
#include "longspan/train/environment.h"
#include "longspan/train/schedule.h"

namespace longspan {
namespace {

using torch::Tensor;

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Whether weights depend on how many steps there are to be.
bool depends_on_steps(const TrainOptions& train) {
  constexpr int64_t kAny = int64_t{1} << 50;
  return train.full_share > 0 ||
         Schedule(train.learning_rate, train.schedule, kAny).ends_with_training();
}

// Options that a run may go on with other values of: they leave the weights of a step
// as they are.
bool may_change(const std::string& name, const TrainOptions& train) {
  if (name == "train.steps" || name == "train.epochs") return !depends_on_steps(train);
  static const std::vector<std::string> names = {
      "task.data",       "train.tokens",     "train.minutes",
      "train.patience",  "train.save_every", "train.keep",
      "train.log_every", "train.prefetch",   "train.tensorboard"};
  return std::ranges::find(names, name) != names.end();
}

// Refuses a folder that holds something else than the run that is wanted.
void check_folder(const RunOptions& run) {
  require(!run.folder.empty(), "training needs a folder for the run");
  const Checkpoints checkpoints(run.folder + "/checkpoints");
  if (!exists(run.folder + "/config.yaml")) {
    require(!exists(run.folder + "/checkpoints"), run.folder,
            " has checkpoints but no config.yaml; choose another folder");
    return;
  }
  require(!run.resume.empty(), run.folder,
          " holds a run already; --resume auto goes on ",
          "with it, or choose another folder");
  const auto steps = checkpoints.steps();
  if (run.resume == "auto" || steps.empty()) return;
  std::error_code error;
  require(
      std::filesystem::equivalent(run.resume, checkpoints.path(steps.back()), error),
      run.folder, " has checkpoints up to step ", steps.back(), ", so going on from ",
      run.resume, " needs another folder");
}

void write_options(Experiment& experiment, const Task& task, const RunOptions& run) {
  unlink((run.folder + "/result.json").c_str());  // of a smaller budget
  if (!task.saved_labels.empty())
    write_whole(run.folder + "/labels.json", task.saved_labels);
  if (!task.saved_vocabulary.empty())
    write_whole(run.folder + "/vocabulary", task.saved_vocabulary);
  Environment around = environment(device_of(experiment.train));
  if (run.at_once > 1)
    around.emplace_back("trainings at once", std::to_string(run.at_once));
  write_environment(run.folder, around);
  write_whole(run.folder + "/config.yaml", config_text(fields(experiment)));
}

void write_result(const std::string& folder, const RunResult& result) {
  const TrainResult& training = result.training;
  nlohmann::ordered_json out = {{"end", training.end},
                                {"steps", training.step},
                                {"examples", training.examples},
                                {"tokens", training.tokens},
                                {"seconds", training.seconds},
                                {"flops", training.flops},
                                {"peak_bytes", training.peak_bytes},
                                {"parameters", result.parameters}};
  const auto of = [](const Score& score, const Measures& measures) {
    nlohmann::ordered_json json = {
        {"loss", score.loss}, {"accuracy", score.accuracy}, {"answers", score.answers}};
    for (const auto& [name, value] : measures) json[name] = value;
    return json;
  };
  if (training.best) {
    out["best"] = {{"step", training.best->step},
                   {"valid", of(training.best->score, result.valid)}};
    if (training.test) out["best"]["test"] = of(*training.test, result.test);
  }
  for (const Reference& reference : result.references)
    out["references"].push_back(
        {{"name", reference.name}, {"accuracy", reference.accuracy}});
  out["facts"] = result.facts;
  write_whole(folder + "/result.json", out.dump(2) + "\n");
}

}  // namespace

Fields fields(Experiment& experiment) {
  Fields all = within("task", fields(experiment.task));
  for (Field& field : within("model", fields(experiment.model))) all.push_back(field);
  for (Field& field : within("train", fields(experiment.train))) all.push_back(field);
  return all;
}

torch::nn::Module& TaskModel::module() const {
  if (classifier) return *classifier;
  return *language;
}

std::unique_ptr<Objective> TaskModel::objective(const Task& task) const {
  if (classifier) return std::make_unique<Classification>(task, *classifier);
  return std::make_unique<LanguageModelling>(task, *language);
}

TaskModel make_model(const Experiment& experiment, const Task& task) {
  const int64_t longest =
      experiment.model.longest > 0 ? experiment.model.longest : task.longest;
  return argument([&] {
    require(longest >= task.longest, "model.longest, ", longest,
            ", is less than the longest sequence of the task, ", task.longest);
    torch::manual_seed(static_cast<uint64_t>(experiment.train.seed));
    TaskModel model;
    if (task.goal == Goal::label)
      model.classifier = std::make_shared<Classifier>(
          experiment.model, task.ids, longest, static_cast<int64_t>(task.labels.size()),
          task.pairs ? Classifier::Reads::pairs : Classifier::Reads::texts);
    else
      model.language = std::make_shared<LanguageModel>(
          experiment.model, task.ids, longest,
          task.goal == Goal::next_token ? LanguageModel::Sees::past
                                        : LanguageModel::Sees::all);
    convert(model.module(), device_of(experiment.train), dtype_of(experiment.train));
    return model;
  });
}

int64_t forward_flops(const TaskModel& model, const Task& task, int64_t length,
                      torch::Device device) {
  const torch::NoGradGuard without_gradients;
  const Batch batch = random_batch(task, 1, length).to(device);
  Pass pass;
  const auto objective = model.objective(task);
  const int64_t before = flops_counted();
  objective->evaluate(batch, pass);
  return flops_counted() - before;
}

Experiment stored_experiment(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  require(exists(path), folder, " is no run: it has no config.yaml");
  Experiment experiment;
  ConfigReader(fields(experiment)).read_file(path);
  return experiment;
}

void check_same(Experiment given, const std::string& folder) {
  Experiment before = stored_experiment(folder);
  if (given.task.longest == 0) given.task.longest = before.task.longest;
  auto names = differing(fields(before), fields(given));
  std::erase_if(
      names, [&](const std::string& name) { return may_change(name, before.train); });
  if (names.empty()) return;
  const auto value = [&](Experiment& experiment) {
    for (const Field& field : fields(experiment))
      if (field.name == names.front()) return field.value().text();
    return std::string();
  };
  const bool of_steps =
      names.front() == "train.steps" || names.front() == "train.epochs";
  fail(folder, ": the run was begun with ", names.front(), " ", value(before),
       of_steps ? ", on which its train.schedule or train.full_share depends" : "",
       ", so it cannot go on with ", value(given),
       "; begin another run in another folder");
}

namespace {

// Before the data is read or drawn, which may take long: refuses what is wrong with the
// options alone.
void check_options(const Experiment& experiment, const RunOptions& run) {
  if (exists(run.folder + "/config.yaml"))
    argument([&] { check_same(experiment, run.folder); });
  const TrainOptions& train = experiment.train;
  constexpr int64_t kUnknown = int64_t{1} << 50;  // epochs are of the data
  argument([&] {
    Schedule(train.learning_rate, train.schedule,
             train.epochs > 0 ? kUnknown : train.steps);
  });
}

// The sizes of a task and its model, where they do not depend on the data.
struct Outline {
  Task task = {};
  TaskModel model = {};
};

std::optional<Outline> outlined(const Experiment& experiment) {
  const TaskOptions& task = experiment.task;
  if (task.name == "classify" || task.tokens != "bytes" ||
      (task.name == "listops" && task.longest == 0))
    return std::nullopt;
  Outline outline{.task = outline_task(task)};
  outline.model = make_model(experiment, outline.task);
  return outline;
}

bool same_sizes(const Task& a, const Task& b) {
  return a.ids == b.ids && a.longest == b.longest && a.labels.size() == b.labels.size();
}

}  // namespace

RunResult run_experiment(Experiment experiment, const RunOptions& run) {
  check_folder(run);
  Progress::be_quiet(run.quiet);
  check_options(experiment, run);
  auto outline = outlined(experiment);
  const Task task = open_task(experiment.task);
  if (experiment.task.longest == 0) experiment.task.longest = task.longest;
  const bool known = outline && same_sizes(outline->task, task);
  TaskModel model = known ? outline->model : TaskModel();
  outline.reset();
  if (!known) model = make_model(experiment, task);
  const auto objective = model.objective(task);
  // No part of the time of training.
  for (const char* const split : {"train", "valid", "test"})
    task.split(split).prepare();
  RunOptions prepared = run;
  prepared.begin = [&] { write_options(experiment, task, run); };
  RunResult result{.training = train(*objective, experiment.train, prepared),
                   .goal = task.goal,
                   .parameters = parameter_count(model.module()),
                   .references = task.references,
                   .facts = task.facts};
  if (const auto& best = result.training.best)
    result.valid = objective->measures(task.split("valid"), best->score);
  if (const auto& test = result.training.test)
    result.test = objective->measures(task.split("test"), *test);
  if (result.training.signal == 0) write_result(run.folder, result);
  return result;
}

TrainedModel open_run(const std::string& folder, const std::string& checkpoint,
                      const std::string& device) {
  TrainedModel trained{.experiment = stored_experiment(folder)};
  if (!device.empty()) trained.experiment.train.device = device;
  const auto saved = [&](const std::string& name) {
    const std::string path = folder + "/" + name;
    return exists(path) ? read_file(path) : std::string();
  };
  try {
    trained.task = restore_task(trained.experiment.task, saved("labels.json"),
                                saved("vocabulary"));
  } catch (const Error& error) {
    fail(folder, ": ", error.what());
  }
  if (checkpoint == "best") {
    trained.checkpoint = folder + "/best";
    require(exists(trained.checkpoint), folder, " has no best checkpoint yet");
  } else if (checkpoint == "last") {
    const Checkpoints all(folder + "/checkpoints");
    require(!all.steps().empty(), folder, " has no checkpoint yet");
    trained.checkpoint = all.path(all.steps().back());
  } else {
    trained.checkpoint = checkpoint;
  }
  const auto state = state_from(read_file(trained.checkpoint + "/state.json"));
  require(state.has_value(), trained.checkpoint,
          "/state.json is not the state of a training");
  trained.data = state->data;
  prepare_device(trained.experiment.train);
  trained.model = make_model(trained.experiment, trained.task);
  trained.carry = load_weights(trained.model.module(), read_weights(trained.checkpoint),
                               trained.checkpoint);
  trained.model.module().eval();
  return trained;
}

std::vector<Prediction> TrainedModel::predict(const std::vector<std::string>& texts) {
  require(model.classifier != nullptr, task.name,
          " gives texts no labels; `generate` continues them");
  const torch::NoGradGuard without_gradients;
  const torch::Device device = device_of(experiment.train);
  auto documents = std::make_shared<Examples>();
  Pairs pairs(documents);
  std::vector<Prediction> answers;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t cut_before = documents->cut();
    try {
      for (const auto& ids : encode_all(task, texts[i]))
        documents->add(ids, 0, task.longest);
      if (task.pairs) pairs.add(documents->size() - 2, documents->size() - 1, 0);
    } catch (const Error& error) {
      fail("text ", i + 1, ": ", error.what());
    }
    answers.push_back({.probabilities = {}, .cut = documents->cut() > cut_before});
  }
  const Dataset& examples =
      task.pairs ? static_cast<const Dataset&>(pairs) : *documents;
  constexpr int64_t kAtOnce = 16;
  for (int64_t first = 0; first < examples.size(); first += kAtOnce) {
    std::vector<int64_t> numbers(
        static_cast<size_t>(std::min(kAtOnce, examples.size() - first)));
    std::iota(numbers.begin(), numbers.end(), first);
    const Batch batch = examples.batch(numbers, {.meant_for = device}).to(device);
    Pass pass;
    Record kept = carry;
    if (is_of_model(model.classifier->carry())) pass.carry = &kept;
    const Tensor logits =
        model.classifier->forward(batch.ids, batch.padding_mask(), pass);
    const Tensor shares =
        torch::softmax(logits, 1).to(torch::kDouble).cpu().contiguous();
    for (int64_t i = 0; i < shares.size(0); ++i) {
      const auto* row = shares[i].data_ptr<double>();
      answers[static_cast<size_t>(first + i)].probabilities.assign(
          row, row + shares.size(1));
    }
  }
  return answers;
}

namespace {

// The ids of a text in which `mask` stands for hidden tokens.
std::vector<int32_t> ids_with_masks(const Task& task, std::string_view text,
                                    const std::string& mask) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(mask)) != text.npos;
       text.remove_prefix(at + mask.size()))
    parts.push_back(text.substr(0, at));
  require(!parts.empty(), "there is no ", mask, " in it to be filled");
  parts.push_back(text);
  std::vector<int32_t> ids;
  for (const auto& part : task.encode_parts(parts)) {
    ids.insert(ids.end(), part.begin(), part.end());
    ids.push_back(task.mask);
  }
  ids.pop_back();
  return ids;
}

}  // namespace

std::vector<Filled> TrainedModel::fill(const std::vector<std::string>& texts,
                                       const std::string& mask, int64_t count) {
  require(task.goal == Goal::masked_tokens && model.language != nullptr, task.name,
          " hides no tokens, so its model fills no masks");
  std::vector<std::vector<int32_t>> all;
  for (size_t i = 0; i < texts.size(); ++i) {
    try {
      all.push_back(ids_with_masks(task, texts[i], mask));
    } catch (const Error& error) {
      fail("text ", i + 1, ": ", error.what());
    }
    // As all texts that it was trained on end.
    if (std::ssize(all.back()) < model.language->longest())
      all.back().push_back(task.end_of_text);
  }
  std::vector<int64_t> never = {0, task.end_of_text};
  if (task.unwritten >= 0) never.push_back(task.unwritten);
  const auto guesses =
      fill_masks(*model.language, all, task.mask, count, never, &carry);
  std::vector<Filled> filled(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    auto place = guesses[i].begin();
    for (int32_t& id : all[i])
      if (id == task.mask) id = static_cast<int32_t>((place++)->front().id);
    filled[i].text = task.decode(all[i]);
    for (const auto& of_place : guesses[i]) {
      auto& likeliest = filled[i].masks.emplace_back();
      for (const Guess& guess : of_place) {
        const auto id = static_cast<int32_t>(guess.id);
        likeliest.emplace_back(task.decode(std::span(&id, 1)), guess.probability);
      }
    }
  }
  return filled;
}

}  // namespace longspan
