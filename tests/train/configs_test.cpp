// Every configuration under configs/ says what its models are, and each of them takes
// a training step, made narrow and for short sequences.

#include <glob.h>

#include <algorithm>
#include <cstring>

#include "longspan/models/classifier.h"
#include "longspan/train/arena.h"
#include "longspan/train/schedule.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

ArenaOptions read(std::initializer_list<const char*> files) {
  ArenaOptions options;
  ConfigReader reader(fields(options));
  for (const char* const file : files)
    reader.read_file(std::string(LONGSPAN_CONFIGS) + "/" + file);
  return options;
}

void make_small(Experiment& experiment) {
  TaskOptions& task = experiment.task;
  TransformerOptions& model = experiment.model;
  if (task.longest > 0) task.longest = std::min<int64_t>(task.longest, 96);
  task.vocabulary = std::min<int64_t>(task.vocabulary, 50);
  if (model.head_width == 0) model.head_width = model.embedding / model.heads;
  model.head_width = std::min<int64_t>(model.head_width, 8);
  model.embedding = 16;
  if (model.cutoffs.text() != "[]") model.cutoffs = Value::parse("[20, 40]");
  model.inner = 16;
  experiment.train.precision = "float";
}

void expect_trains(Experiment experiment) {
  Schedule(experiment.train.learning_rate, experiment.train.schedule,
           std::max<int64_t>(1, experiment.train.steps));
  make_small(experiment);
  const Task task = outline_task(experiment.task);
  const auto model = make_model(experiment, task);
  model.module().train();
  Pass pass;
  pass.training = pass.sampling = true;
  const auto objective = model.objective(task);
  const int64_t length = std::min<int64_t>(task.longest, 96);
  const auto sums = objective->evaluate(random_batch(task, 2, length), pass);
  sums.loss.backward();
  EXPECT_TRUE(std::isfinite(sums.loss.item<double>()));
}

void expect_all_train(const ArenaOptions& options) {
  if (options.entries.text() == "[]") return expect_trains(options.experiment);
  for (const ArenaEntry& entry : arena_entries(options)) {
    SCOPED_TRACE(entry.name);
    expect_trains(experiment_of(options, entry, 1));
  }
}

// A test of one configuration, or of one laid over another.
void expect_config(std::initializer_list<const char*> files) {
  std::string names;
  for (const char* const file : files) names += std::string(file) + " ";
  SCOPED_TRACE(names);
  EXPECT_NO_THROW(expect_all_train(read(files)));
}

// What says only what is compared, and what it is laid over.
const std::pair<const char*, std::vector<const char*>> kOver[] = {
    {"lra/mechanisms.yaml",
     {"lra/listops/dense.yaml", "lra/imdb/dense.yaml", "lra/retrieval/dense.yaml"}},
    {"lra/cifar10/mechanisms.yaml", {"lra/cifar10/dense.yaml"}},
    {"lra/pathfinder/mechanisms.yaml", {"lra/pathfinder/32.yaml"}},
    {"wide/shapes.yaml", {"wide/listops.yaml", "wide/imdb-words.yaml"}},
    {"wide/mechanisms.yaml", {"wide/imdb-bytes.yaml"}},
    {"wide/retrieval-shapes.yaml", {"wide/retrieval.yaml"}},
    {"wide/retrieval-mechanisms.yaml", {"wide/retrieval.yaml"}},
};

// The names of all configurations.
std::vector<std::string> all_configs() {
  std::vector<std::string> names;
  for (const char* const depth : {"/*.yaml", "/*/*.yaml", "/*/*/*.yaml"}) {
    glob_t found;
    if (glob((std::string(LONGSPAN_CONFIGS) + depth).c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i)
        names.emplace_back(found.gl_pathv[i] + std::strlen(LONGSPAN_CONFIGS) + 1);
    globfree(&found);
  }
  return names;
}

TEST(Configs, HaveModelsThatTrain) {
  const auto files = all_configs();
  EXPECT_GE(files.size(), 20u);
  for (const std::string& file : files) {
    const auto over = std::ranges::find(
        kOver, file, [](const auto& pair) { return std::string(pair.first); });
    if (over == std::end(kOver)) {
      expect_config({file.c_str()});
      continue;
    }
    for (const char* const base : over->second) expect_config({base, file.c_str()});
  }
}

// Published sizes, of weights and both moments of the optimiser (12 bytes a parameter),
// in MiB.
TEST(Configs, HaveThePublishedSizes) {
  const auto mebibytes = [](const char* file, const std::string& entry,
                            const char* over) {
    const ArenaOptions options = read({file, over});
    for (const ArenaEntry& one : arena_entries(options)) {
      if (one.name != entry) continue;
      const Experiment experiment = experiment_of(options, one, 1);
      const auto model = make_model(experiment, outline_task(experiment.task));
      return 12.0 * static_cast<double>(parameter_count(model.module())) / (1 << 20);
    }
    return 0.0;
  };
  EXPECT_NEAR(mebibytes("wide/retrieval.yaml", "4 x 4", "wide/retrieval-shapes.yaml"),
              12.4, 0.1);
  EXPECT_NEAR(mebibytes("wide/retrieval.yaml", "1 x 16", "wide/retrieval-shapes.yaml"),
              7.9, 0.1);
  EXPECT_NEAR(mebibytes("wide/listops.yaml", "1 x 48", "wide/shapes.yaml"), 108.4, 0.1);
}

}  // namespace
}  // namespace longspan::testing
