#include "longspan/train/journal.h"

#include <sys/resource.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <fstream>
#include <regex>

#include <nlohmann/json.hpp>

#include "longspan/base/read_file.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr JournalOptions kPlain{.tensorboard = false, .quiet = true};

class AJournal : public ::testing::Test {
 protected:
  std::string metrics() const { return read_file(path_); }
  void begin_with(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
  }

  const Folder folder_;
  const std::string place_ = folder_ / ".";
  const std::string path_ = place_ + "/metrics.jsonl";
};

TEST_F(AJournal, HasALineOfJsonForEachEvent) {
  Journal journal(place_, 0, kPlain);
  journal.metrics("train", 1, {{"loss", 0.5}, {"tokens", 3e9}, {"rate", 1e-300}});
  journal.metrics("valid", 2, {{"a\"b\n", -0.25}, {"steps", -4}, {"large", 1e300}});
  journal.metrics("test", 3, {{"nan", NAN}, {"inf", INFINITY}, {"down", -INFINITY}});
  journal.metrics("test", 4, {});
  // Without a flush.
  EXPECT_EQ(
      metrics(),
      "{\"step\":1,\"event\":\"train\",\"loss\":0.5,\"tokens\":3000000000,\"rate\":"
      "1e-300}\n"
      "{\"step\":2,\"event\":\"valid\",\"a\\\"b\\n\":-0.25,\"steps\":-4,\"large\":"
      "1e+300}\n"
      "{\"step\":3,\"event\":\"test\",\"nan\":null,\"inf\":null,\"down\":null}\n"
      "{\"step\":4,\"event\":\"test\"}\n");
}

TEST_F(AJournal, KeepsEveryDigit) {
  const double values[] = {0.1, 1.0 / 3, -2.5e-7, 8.999999999999999e15, 1e17, 0};
  {
    Journal journal(place_, 0, kPlain);
    for (const double value : values) journal.metrics("train", 1, {{"x", value}});
  }
  std::ifstream file(path_);
  for (const double value : values) {
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_EQ(nlohmann::json::parse(line).at("x").get<double>(), value);
  }
}

TEST_F(AJournal, GoesOnWithoutLaterSteps) {
  {
    Journal journal(place_, 0, kPlain);
    for (int step = 0; step <= 30; step += 10) {
      journal.metrics("train", step, {{"loss", 0.5}});
      journal.metrics("valid", step, {{"loss", 0.25}});
    }
  }
  const std::string all = metrics();
  { const Journal journal(place_, 30, kPlain); }
  EXPECT_EQ(metrics(), all);
  const std::string until_twenty = all.substr(0, all.find("{\"step\":30"));
  {
    Journal journal(place_, 20, kPlain);
    EXPECT_EQ(metrics(), until_twenty);
    journal.metrics("train", 25, {});
  }
  EXPECT_EQ(metrics(), until_twenty + "{\"step\":25,\"event\":\"train\"}\n");
  { const Journal journal(place_, -1, kPlain); }
  EXPECT_EQ(metrics(), "");
}

TEST_F(AJournal, DropsWhatAKilledProcessDidNotFinish) {
  const std::string good = "{\"step\":1,\"loss\":0.5}\n{\"step\":2}\n";
  for (const std::string half :
       {"", "{", "{\"step\":2,\"lo", "{\"step\":2}", "{\"step\":2,\n", "\n", "2\n",
        "{\"step\":\"2\"}\n", "{\"event\":\"train\"}\n"}) {
    begin_with(good + half);
    Journal journal(place_, 5, kPlain);
    EXPECT_EQ(metrics(), good) << half;
    journal.metrics("train", 3, {});
    EXPECT_EQ(metrics(), good + "{\"step\":3,\"event\":\"train\"}\n") << half;
  }
}

TEST_F(AJournal, KeepsLinesAsTheyAre) {
  const std::string lines =
      "{ \"step\" : 1 , \"own\": [1, {\"a\": null}] }\n{\"step\":1}\n{\"step\":0}\n";
  begin_with(lines + "{\"step\":6}\n");
  const Journal journal(place_, 5, kPlain);
  EXPECT_EQ(metrics(), lines);
}

TEST_F(AJournal, LogsWithTheTime) {
  for (const char* const line : {"first", "second"}) {
    Journal journal(place_, 0, kPlain);
    journal.say(line);
    journal.progress("and more");
  }
  const std::string time = "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\dZ  ";
  const std::string log = read_file(place_ + "/log.txt");
  EXPECT_TRUE(
      std::regex_match(log, std::regex(time + "first\n" + time + "and more\n" + time +
                                       "second\n" + time + "and more\n")))
      << log;
}

TEST_F(AJournal, SpeaksUnlessQuiet) {
  for (const bool quiet : {false, true}) {
    ::testing::internal::CaptureStderr();
    {
      Journal journal(place_, 0, {.tensorboard = false, .quiet = quiet});
      journal.say("one");
      journal.progress("two");
      journal.say("three");
    }
    EXPECT_EQ(::testing::internal::GetCapturedStderr(),
              quiet ? "" : "one\ntwo\nthree\n");
  }
}

TEST_F(AJournal, TellsTensorBoardIfAsked) {
  for (const bool tensorboard : {false, true}) {
    const Folder folder;
    Journal journal(folder / ".", 0, {.tensorboard = tensorboard, .quiet = true});
    journal.metrics("train", 1, {{"loss", 0.5}});
    journal.flush();
    EXPECT_EQ(folder.entries(), tensorboard ? 3 : 2);
    if (!tensorboard) continue;
    std::string events;
    DIR* const handle = opendir((folder / ".").c_str());
    while (const dirent* entry = readdir(handle))
      if (std::string(entry->d_name).starts_with("events."))
        events = read_file(folder / entry->d_name);
    closedir(handle);
    EXPECT_NE(events.find("train/loss"), events.npos);
  }
}

TEST_F(AJournal, SaysWhereItCannotWrite) {
  EXPECT_EQ(refusal([] { Journal("/nowhere", 0, kPlain); }),
            "cannot write /nowhere/metrics.jsonl: No such file or directory");
  ASSERT_EQ(symlink("/nowhere/log.txt", (place_ + "/log.txt").c_str()), 0);
  EXPECT_EQ(refusal([&] { Journal(place_, 0, kPlain); }),
            "cannot write " + place_ + "/log.txt: No such file or directory");
}

TEST_F(AJournal, SaysThatTheDiskIsFull) {
  Journal journal(place_, 0, kPlain);
  journal.metrics("train", 1, {});
  const std::string before_full = metrics();
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {before_full.size(), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  errno = EDOM;  // of something else
  const auto message = refusal([&] { journal.metrics("train", 2, {}); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "cannot write " + path_ + ": File too large");
  EXPECT_EQ(metrics(), before_full);
}

}  // namespace
}  // namespace longspan::testing
