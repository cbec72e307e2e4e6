#include "longspan/report/published.h"

#include "tests/support/tensors.h"

namespace longspan::report {
namespace {

const Source& source(std::string_view name) {
  for (const Source& one : published())
    if (one.name == name) return one;
  throw std::invalid_argument(std::string(name));
}

TEST(Published, NumbersAreThoseOfThePapers) {
  const struct {
    std::string_view source, mechanism, task;
    double accuracy;
  } cells[] = {{"Long Range Arena", "dense", "ListOps", 36.37},
               {"Long Range Arena", "performer", "Pathfinder", 77.05},
               {"Long Range Arena", "sparse_fixed", "Image", 44.24},
               {"deep", "linear", "Text in words", 86.7},
               {"deep", "synthesizer", "Retrieval", 71.1},
               {"wide", "linear", "Text", 64.7},
               {"wide", "mixed", "Retrieval", 66.9},
               {"small", "dense", "Text in words", 84.0},
               {"GRC", "grc bigbird", "ListOps", 37.45},
               {"GRC", "grc reformer", "ListOps", 37.85},
               {"Combiner", "combiner_fixed", "Pathfinder, intermediate", 88.59},
               {"Combiner", "combiner_axial_rowmajor", "Retrieval", 56.10}};
  for (const auto& [from, mechanism, task, accuracy] : cells)
    EXPECT_EQ(printed(source(from), mechanism, task), accuracy) << from << mechanism;
  EXPECT_FALSE(printed(source("deep"), "mixed", "Retrieval"));
  EXPECT_FALSE(printed(source("Long Range Arena"), "dense", "Path-X"));
  EXPECT_FALSE(
      printed(source("Long Range Arena"), "dense", "Pathfinder, intermediate"));
}

Place placed(const TaskOptions& task, const std::string& attention = "dense",
             const std::vector<std::string>& facts = {}) {
  Experiment experiment{.task = task};
  experiment.model.attention = Value::parse(attention);
  return place_of(experiment, facts);
}

TEST(Published, StandBesideRunsOfTheSameTask) {
  const std::pair<TaskOptions, const char*> cases[] = {
      {{.name = "listops", .longest = 1999}, "ListOps"},
      {{.name = "imdb", .longest = 4000}, "Text"},
      {{.name = "imdb", .longest = 500, .tokens = "words"}, "Text in words"},
      {{.name = "retrieval", .longest = 4000}, "Retrieval"},
      {{.name = "cifar10"}, "Image"},
      {{.name = "pathfinder"}, "Pathfinder"},
      {{.name = "pathfinder", .difficulty = "intermediate"},
       "Pathfinder, intermediate"},
      {{.name = "pathfinder", .size = 128}, "Path-X"}};
  for (const auto& [task, name] : cases) {
    EXPECT_EQ(placed(task).task, name);
    EXPECT_EQ(placed(task).reason, "") << name;
  }
  const std::pair<TaskOptions, const char*> others[] = {
      {{.name = "listops", .longest = 60},
       "of at most 60 tokens, where the published ones have 2000"},
      {{.name = "imdb", .longest = 1000, .tokens = "sentencepiece"},
       "no paper here has numbers of the task imdb in sentencepiece"},
      {{.name = "pathfinder", .difficulty = "easy"},
       "no paper here has numbers of the task pathfinder, easy, in 32 x 32"},
      {{.name = "pathfinder", .size = 256},
       "no paper here has numbers of the task pathfinder, hard, in 256 x 256"},
      {{.name = "classify"}, "no paper here has numbers of the task classify"}};
  for (const auto& [task, reason] : others) EXPECT_EQ(placed(task).reason, reason);
  const std::string fact = "other pairs: not to be compared with published numbers";
  EXPECT_EQ(placed({.name = "retrieval"}, "dense", {"bytes", fact}).reason, fact);
}

TEST(Published, StandBesideTheSameMechanism) {
  const TaskOptions task{.name = "listops", .longest = 2000};
  EXPECT_EQ(placed(task, "{name: local, block: 50}").mechanism, "local");
  EXPECT_EQ(placed(task, "grc").mechanism, "grc dense");
  EXPECT_EQ(
      placed(task, "{name: grc, attention: {name: bigbird, block: 64}, ratio: 0.5}")
          .mechanism,
      "grc bigbird");
  EXPECT_EQ(placed(task, "{name: grc, ratio: 0.25}").reason,
            "the published caches have half the width, ratio 0.5");
  Experiment experiment{.task = task};
  experiment.model.by_layer = Value::parse("[{at: 0, attention: local}]");
  EXPECT_EQ(place_of(experiment, {}).reason, "its layers have several mechanisms");
}

}  // namespace
}  // namespace longspan::report
