// Every configuration under configs/ says what its models are, and each of them takes
// a training step, made narrow and for short sequences.

#include <glob.h>

#include <algorithm>
#include <cstring>
#include <sstream>

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
    {"lra/listops/mechanisms.yaml", {"lra/listops/dense.yaml"}},
    {"lra/imdb/mechanisms.yaml", {"lra/imdb/dense.yaml"}},
    {"lra/retrieval/mechanisms.yaml", {"lra/retrieval/dense.yaml"}},
    {"lra/pathfinder/combiner.yaml", {"lra/pathfinder/32.yaml"}},
    {"lra/cifar10/mechanisms.yaml", {"lra/cifar10/dense.yaml"}},
    {"lra/pathfinder/mechanisms.yaml", {"lra/pathfinder/32.yaml"}},
    {"wide/shapes.yaml", {"wide/listops.yaml", "wide/imdb-words.yaml"}},
    {"wide/mechanisms.yaml", {"wide/imdb-bytes.yaml"}},
    {"wide/listops-mechanisms.yaml", {"wide/listops.yaml"}},
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
  EXPECT_NEAR(
      mebibytes("wide/imdb-bytes.yaml", "sinkhorn wide", "wide/mechanisms.yaml"), 97.6,
      0.1);
  EXPECT_NEAR(mebibytes("wide/listops.yaml", "synthesizer wide",
                        "wide/listops-mechanisms.yaml"),
              178.9, 0.1);
}

// "4 x 8, 512/512/1024, cls, dropout 0.1 0.1": layers x heads, width of tokens, of all
// heads and inside the feed-forward, ..
std::string model_text(const TransformerOptions& model) {
  std::ostringstream text;
  const int64_t head =
      model.head_width > 0 ? model.head_width : model.embedding / model.heads;
  text << model.layers << " x " << model.heads << ", " << model.embedding << '/'
       << head * model.heads << '/' << model.inner << ", " << model.pooling
       << ", dropout " << model.dropout << ' ' << model.attention_dropout;
  return text.str();
}

// "5000 steps of 32, rate 0.05, warm-up 1000, decay 0.1"
std::string training_text(const TrainOptions& train) {
  std::ostringstream text;
  text << train.steps << " steps of " << train.batch << ", rate " << train.learning_rate
       << ", warm-up ";
  for (const Value& factor : *train.schedule.as<Value::List>()) {
    const auto* map = factor.as<Value::Map>();
    if (map && *map->at("name").as<std::string>() == "warmup")
      text << map->at("steps").text();
  }
  text << ", decay " << train.adamw.weight_decay;
  return text.str();
}

TEST(Configs, AreThoseOfTheReleasedCodeOfTheArena) {
  const struct {
    const char *file, *model, *positions, *training;
  } tasks[] = {
      {"listops/dense", "4 x 8, 512/512/1024, cls, dropout 0.1 0.1", "sinusoidal",
       "5000 steps of 32, rate 0.05, warm-up 1000, decay 0.1"},
      {"imdb/dense", "4 x 4, 256/256/1024, cls, dropout 0.1 0.1", "sinusoidal",
       "20000 steps of 32, rate 0.05, warm-up 8000, decay 0.1"},
      {"retrieval/dense", "4 x 4, 128/128/512, cls, dropout 0.1 0.1", "sinusoidal",
       "5000 steps of 32, rate 0.05, warm-up 8000, decay 0.1"},
      {"cifar10/dense", "1 x 8, 128/64/128, cls, dropout 0.3 0.2", "learned",
       "35000 steps of 256, rate 0.0005, warm-up 175, decay 0"},
      {"pathfinder/32", "4 x 4, 32/16/32, mean, dropout 0.2 0.1", "learned",
       "62400 steps of 512, rate 0.001, warm-up 312, decay 0"},
      {"pathfinder/64", "2 x 4, 32/32/32, cls, dropout 0.1 0.1", "learned",
       "125000 steps of 256, rate 0.001, warm-up 625, decay 0"},
      {"pathfinder/128", "1 x 2, 32/16/32, mean, dropout 0.1 0.1", "learned",
       "500000 steps of 64, rate 0.001, warm-up 2500, decay 0"},
      {"pathfinder/256", "2 x 4, 32/32/32, cls, dropout 0.1 0.1", "learned",
       "500000 steps of 32, rate 0.001, warm-up 5000, decay 0"},
  };
  for (const auto& [file, model, positions, training] : tasks) {
    SCOPED_TRACE(file);
    const Experiment experiment =
        read({("lra/" + std::string(file) + ".yaml").c_str()}).experiment;
    EXPECT_EQ(model_text(experiment.model), model);
    EXPECT_EQ(experiment.model.positions, positions);
    EXPECT_EQ(experiment.model.activation, "gelu_tanh");
    EXPECT_EQ(training_text(experiment.train), training);
    EXPECT_EQ(experiment.train.adamw.decay_vectors,
              experiment.train.adamw.weight_decay > 0);
    EXPECT_EQ(experiment.train.clip, std::string(file) == "pathfinder/128" ? 1 : 0);
    EXPECT_EQ(experiment.train.seed, 0);
  }
}

// Of the released code, where it can be run; what has no weights drops none.
TEST(Configs, HaveTheSizesOfTheArenaForEveryMechanism) {
  const std::pair<const char*, const char*> images[] = {
      {"dense", "1 x 8, 128/64/128, cls, dropout 0.3 0.2"},
      {"local", "1 x 2, 128/64/128, mean, dropout 0.3 0.2"},
      {"sparse", "1 x 8, 128/64/128, cls, dropout 0.3 0.2"},
      {"longformer", "4 x 4, 128/64/128, mean, dropout 0.3 0.2"},
      {"linformer", "1 x 8, 128/64/128, cls, dropout 0.3 0.2"},
      {"reformer", "4 x 8, 64/64/64, cls, dropout 0.3 0.2"},
      {"sinkhorn", "1 x 1, 32/32/64, mean, dropout 0.1 0.2"},
      {"synthesizer", "1 x 8, 128/64/128, cls, dropout 0.3 0.2"},
      {"bigbird", "1 x 4, 128/64/128, cls, dropout 0.3 0.2"},
      {"linear", "1 x 8, 128/64/128, cls, dropout 0.3 0"},
      {"performer", "1 x 8, 128/64/128, cls, dropout 0.3 0"},
  };
  const std::pair<const char*, const char*> curves[] = {
      {"dense", "4 x 4, 32/16/32, mean, dropout 0.2 0.1"},
      {"local", "2 x 4, 64/32/64, mean, dropout 0.1 0.1"},
      {"sparse", "1 x 8, 32/16/32, mean, dropout 0.2 0.1"},
      {"longformer", "2 x 2, 32/16/32, mean, dropout 0.1 0.1"},
      {"linformer", "1 x 2, 32/16/32, mean, dropout 0.2 0.1"},
      {"reformer", "2 x 8, 64/64/64, mean, dropout 0.2 0.1"},
      {"sinkhorn", "2 x 4, 32/16/64, mean, dropout 0.2 0.1"},
      {"synthesizer", "2 x 4, 64/32/64, mean, dropout 0.2 0.1"},
      {"bigbird", "4 x 2, 64/32/64, mean, dropout 0.2 0.1"},
      {"linear", "1 x 2, 128/64/128, mean, dropout 0.2 0"},
      {"performer", "1 x 8, 128/64/128, mean, dropout 0.2 0"},
  };
  const auto expect = [](const ArenaOptions& options, auto& expected) {
    for (const auto& [name, text] : expected) {
      SCOPED_TRACE(name);
      const auto entries = arena_entries(options);
      const auto entry = std::ranges::find(entries, name, &ArenaEntry::name);
      ASSERT_NE(entry, entries.end());
      EXPECT_EQ(model_text(experiment_of(options, *entry, 0).model), text);
    }
  };
  expect(read({"lra/cifar10/dense.yaml", "lra/cifar10/mechanisms.yaml"}), images);
  expect(read({"lra/pathfinder/32.yaml", "lra/pathfinder/mechanisms.yaml"}), curves);
}

TEST(Configs, AreThoseOfTheWideStudy) {
  const struct {
    const char *file, *model, *training;
    int64_t longest;
  } tasks[] = {
      {"imdb-words", "6 x 8, 512/512/2048, cls, dropout 0.1 0.1",
       "30000 steps of 32, rate 0.05, warm-up 8000, decay 0.1", 500},
      {"imdb-bytes", "6 x 8, 512/512/2048, cls, dropout 0.1 0.1",
       "30000 steps of 32, rate 0.05, warm-up 8000, decay 0.1", 1000},
      {"listops", "6 x 8, 512/512/2048, cls, dropout 0.1 0.1",
       "10000 steps of 32, rate 0.05, warm-up 1000, decay 0.1", 2000},
      {"retrieval", "4 x 4, 128/128/512, cls, dropout 0.1 0.1",
       "10000 steps of 32, rate 0.05, warm-up 8000, decay 0.1", 4000},
  };
  for (const auto& [file, model, training, longest] : tasks) {
    SCOPED_TRACE(file);
    const Experiment experiment =
        read({("wide/" + std::string(file) + ".yaml").c_str()}).experiment;
    EXPECT_EQ(model_text(experiment.model), model);
    EXPECT_EQ(training_text(experiment.train), training);
    EXPECT_EQ(experiment.task.longest, longest);
  }
}

}  // namespace
}  // namespace longspan::testing
