#include "longspan/train/arena.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/train/environment.h"
#include "longspan/train/run_folder.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

ArenaOptions options_in(const std::string& folder, const std::string& entries) {
  std::ofstream file(folder + "/train.tsv");
  file << "text\tlabel\n";
  for (int i = 0; i < 60; ++i)
    file << "row " << i << '\t' << (i % 2 ? "odd" : "even") << '\n';
  ArenaOptions options;
  options.experiment.task = {.name = "classify", .data = folder, .longest = 8};
  options.experiment.model = {.layers = 1, .embedding = 8, .heads = 2, .inner = 8};
  options.experiment.train.steps = 4;
  options.experiment.train.batch = 8;
  options.experiment.train.evaluate_every = 2;
  options.experiment.train.log_every = 2;
  options.experiment.train.tensorboard = false;
  options.entries = Value::parse(entries);
  options.seeds = Value::parse("[1, 2]");
  return options;
}

const auto kQuietly = [](const std::string&) {};

TEST(Arena, TrainsEveryEntryWithEverySeed) {
  const Folder folder;
  const auto options =
      options_in(folder / "",
                 "[dense, {name: two layers, model.layers: 2}, {name: no such, "
                 "model.attention: {name: local, block: 0}}]");
  const auto [entries, signal] = run_arena(options, folder / "runs", true, kQuietly);
  EXPECT_EQ(signal, 0);
  ASSERT_EQ(entries.size(), 3u);
  for (const ArenaEntry& entry : entries) ASSERT_EQ(entry.runs.size(), 2u);
  EXPECT_GT(entries[1].runs[0].parameters, entries[0].runs[0].parameters);
  EXPECT_NE(entries[0].runs[0].loss, entries[0].runs[1].loss);
  EXPECT_EQ(entries[0].runs[1].folder, folder / "runs/dense/seed-2");
  EXPECT_NE(entries[2].runs[0].refused.find("block"), std::string::npos)
      << entries[2].runs[0].refused;

  const Spread loss =
      spread_of(entries[0], [](const ArenaRun& run) { return run.loss; });
  const double a = entries[0].runs[0].loss, b = entries[0].runs[1].loss;
  EXPECT_EQ(loss.count, 2);
  EXPECT_DOUBLE_EQ(loss.mean, (a + b) / 2);
  EXPECT_NEAR(loss.deviation, std::abs(a - b) / std::sqrt(2.0), 1e-12);
  EXPECT_EQ(spread_of(entries[2], [](const ArenaRun& run) { return run.loss; }).count,
            0);
}

TEST(Arena, JudgesBySamples) {
  const Folder folder;
  auto options = options_in(
      folder / "",
      "[{name: plain, samples: 3, model.attention: {name: ssa, windows: 3}}, {name: "
      "cached, samples: 3, model.attention: {name: grc, attention: ssa}}]");
  options.seeds = Value::parse("[1]");
  for (int time = 0; time < 2; ++time) {
    const auto entries = run_arena(options, folder / "runs", true, kQuietly).entries;
    ASSERT_EQ(entries.size(), 2u);
    for (const ArenaEntry& entry : entries) {
      EXPECT_EQ(entry.runs[0].refused, "");
      ASSERT_EQ(entry.runs[0].sampled.size(), 2u);
      EXPECT_NE(entry.runs[0].sampled[1], entry.runs[0].loss) << entry.name;
      EXPECT_NEAR(entry.runs[0].sampled[1], entry.runs[0].loss, 0.2) << entry.name;
    }
  }
}

TEST(Arena, ReadsWhatIsTrainedAlready) {
  const Folder folder;
  const auto options = options_in(folder / "", "[dense]");
  const auto first = run_arena(options, folder / "runs", true, kQuietly);
  const std::string result = first.entries[0].runs[0].folder + "/result.json";
  const auto written = std::filesystem::last_write_time(result);
  std::vector<std::string> told;
  const auto again = run_arena(options, folder / "runs", true,
                               [&](const std::string& line) { told.push_back(line); });
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(std::filesystem::last_write_time(result), written);
  EXPECT_EQ(again.entries[0].runs[0].loss, first.entries[0].runs[0].loss);
  ASSERT_TRUE(first.entries[0].latency.has_value());
  EXPECT_EQ(first.entries[0].latency->batch, 1);
  EXPECT_GT(first.entries[0].latency->flops, 0);
  EXPECT_EQ(again.entries[0].latency->timing.mean,
            first.entries[0].latency->timing.mean);  // not measured again
  EXPECT_EQ(again.entries[0].runs[0].seconds, first.entries[0].runs[0].seconds);

  std::filesystem::remove(result);  // as if it had been stopped at its end
  const auto resumed =
      run_arena(options, folder / "runs", true,
                [&](const std::string& line) { told.push_back(line); });
  EXPECT_EQ(told, std::vector<std::string>{"dense, seed 1"});
  EXPECT_EQ(resumed.entries[0].runs[0].loss, first.entries[0].runs[0].loss);
}

// Results of other options are not passed off as those of the given ones.
TEST(Arena, RefusesARunThatWasBegunOtherwise) {
  const Folder folder;
  auto options = options_in(folder / "", "[{name: one, model.attention: linear}]");
  options.seeds = Value::parse("[1]");
  const auto run = [&](const ArenaOptions& now) {
    return run_arena(now, folder / "runs", true, kQuietly).entries[0].runs[0];
  };
  const ArenaRun first = run(options);
  EXPECT_EQ(first.refused, "");
  const std::string latency = read_file(folder / "runs/one/latency.json");

  ArenaOptions other = options;
  other.entries = Value::parse("[{name: one, model.attention: dense}]");
  const std::string begun = "one, seed 1: " + (folder / "runs/one/seed-1: ");
  EXPECT_EQ(
      testing::refusal([&] { run(other); }),
      begun +
          "the run was begun with model.attention linear, so it cannot go on with "
          "dense; begin another run in another folder");
  EXPECT_EQ(read_arena(folder / "runs")[0].runs[0].refused, "");  // as it was
  const std::string kept = read_file(arena_options_path(folder / "runs"));
  ArenaOptions less = options;
  less.experiment.train.steps = 2;
  EXPECT_EQ(testing::refusal([&] { run(less); }),
            begun +
                "was trained with train.steps 4, so it cannot be of 2; choose another "
                "name or folder");
  EXPECT_EQ(read_file(arena_options_path(folder / "runs")), kept);

  // A larger budget goes on, and what was measured of the best before is of another.
  ArenaOptions more = options;
  more.experiment.train.steps = 40;
  more.experiment.train.learning_rate = 1e-3;
  const ArenaRun longer = run(more);
  EXPECT_EQ(longer.refused, "");
  EXPECT_GT(longer.flops, first.flops);
  EXPECT_GT(longer.best_step, first.best_step);
  EXPECT_NE(read_file(folder / "runs/one/latency.json"), latency);
}

// What LibTorch and the system throw refuses an entry, not the arena.
TEST(Arena, SurvivesAnEntryWithoutMemory) {
  const Folder folder;
  auto options = options_in(
      folder / "",
      "[{name: huge, model.attention: {name: synthesizer, parts: [random]}, "
      "model.longest: 100000, model.heads: 10000, model.head_width: 1}, dense]");
  options.seeds = Value::parse("[1]");
  const auto entries = run_arena(options, folder / "runs", true, kQuietly).entries;
  EXPECT_NE(entries[0].runs[0].refused.find("memory"), std::string::npos)
      << entries[0].runs[0].refused;
  EXPECT_FALSE(entries[0].runs[0].goes_on);
  EXPECT_EQ(entries[1].runs[0].refused, "");
  EXPECT_TRUE(entries[1].latency.has_value());
}

// From the beginning its folder says what it is, and which runs are not at their end.
TEST(Arena, TellsHowFarItIs) {
  const Folder folder;
  auto options = options_in(folder / "", "[dense, linear]");
  options.seeds = Value::parse("[1]");
  int told = 0;
  run_arena(options, folder / "runs", true, [&](const std::string&) {
    const auto entries = read_arena(folder / "runs");
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].runs[0].refused, told == 0 ? "not trained yet" : "");
    EXPECT_EQ(entries[1].runs[0].refused, "not trained yet");
    EXPECT_TRUE(entries[1].runs[0].goes_on);
    ++told;
  });
  EXPECT_EQ(told, 2);
  std::filesystem::remove(folder / "runs/linear/seed-1/result.json");
  EXPECT_EQ(read_arena(folder / "runs")[1].runs[0].refused,
            "not at its end, but at step 4");

  ArenaOptions stored;
  ConfigReader(fields(stored)).read_file(arena_options_path(folder / "runs"));
  EXPECT_TRUE(differing(fields(stored), fields(options)).empty());
}

// A process of an arena that was killed may still be at its last step.
TEST(Arena, WaitsForAnotherProcessInAFolder) {
  const Folder folder;
  auto options = options_in(folder / "", "[dense]");
  options.seeds = Value::parse("[1]");
  auto held = std::make_unique<RunFolder>(folder / "runs/dense/seed-1");
  std::vector<std::string> told;
  const auto entries =
      run_arena(options, folder / "runs", true, [&](const std::string& line) {
        told.push_back(line);
        held.reset();
      }).entries;
  ASSERT_EQ(told.size(), 2u);
  EXPECT_NE(told[0].find("waits for another process"), std::string::npos);
  EXPECT_EQ(entries[0].runs[0].refused, "");
}

TEST(Arena, IsReadFromItsFolder) {
  const Folder folder;
  auto options = options_in(
      folder / "",
      "[{name: two layers, model.layers: 2}, {name: no such, model.attention: {name: "
      "local, block: 0}}]");
  options.latency_passes = 2;
  const auto written = run_arena(options, folder / "runs", true, kQuietly).entries;
  const auto read = read_arena(folder / "runs");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].values, written[0].values);
  EXPECT_EQ(read[0].runs[1].seed, 2);
  EXPECT_EQ(read[0].runs[1].loss, written[0].runs[1].loss);
  EXPECT_EQ(read[0].runs[1].folder, written[0].runs[1].folder);
  EXPECT_EQ(read[0].latency->passes, 2);
  EXPECT_EQ(read[1].runs[0].refused, written[1].runs[0].refused);
  // Weights and two moments, all float.
  EXPECT_GE(read[0].runs[0].checkpoint_bytes, 12 * read[0].runs[0].parameters);
  EXPECT_FALSE(read_environment(read[0].runs[0].folder).empty());
}

TEST(Arena, NeedsAProgramForProcesses) {
  const Folder folder;
  auto options = options_in(folder / "", "[dense]");
  options.processes = 2;
  const std::string refused =
      refusal([&] { run_arena(options, folder / "runs", true, kQuietly); });
  EXPECT_EQ(refused,
            "arena.processes, 2, needs the program that is to be started; must be 1");
}

TEST(Arena, RefusesEntriesThatCannotBe) {
  const auto refusal = [](const std::string& entries, const std::string& seeds) {
    ArenaOptions options;
    options.entries = Value::parse(entries);
    options.seeds = Value::parse(seeds);
    try {
      arena_entries(options);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  EXPECT_EQ(refusal("[]", "[1]"),
            "arena.entries must be a list of what is compared, got []");
  EXPECT_EQ(refusal("[dense]", "[]"),
            "arena.seeds must be a list such as [1, 2, 3], got []");
  EXPECT_EQ(refusal("[dense]", "[a]"), "arena.seeds must be whole numbers, got a");
  EXPECT_EQ(refusal("[{model.layers: 2}]", "[1]"),
            "arena.entries: an entry needs a name, got {model.layers: 2}");
  EXPECT_EQ(refusal("[dense, {name: dense!}]", "[1]"),
            "arena.entries: 'dense!' is there twice");
  EXPECT_EQ(refusal("[{name: a, model.layrs: 2}]", "[1]"),
            "arena.entries, a: no key 'model.layrs'; did you mean 'model.layers'?");
  EXPECT_EQ(refusal("[{name: a, samples: 0}]", "[1]"),
            "arena.entries: samples must be a whole number of 1 or more, got 0");
  EXPECT_EQ(refusal("[{name: a, samples: 2}]", "[1]"),
            "arena.entries, a: samples need a mechanism that draws the keys it meets, "
            "such as ssa");
}

}  // namespace
}  // namespace longspan::testing
