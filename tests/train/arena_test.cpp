#include "longspan/train/arena.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "longspan/base/error.h"
#include "longspan/train/environment.h"
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
}

}  // namespace
}  // namespace longspan::testing
