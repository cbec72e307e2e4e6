#include "longspan/train/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "longspan/base/read_file.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Steps = std::vector<int64_t>;

const std::string kParts[] = {"model.safetensors", "optimizer.safetensors",
                              "state.json", "DONE"};

Checkpoint some(double value) {
  return {.model = {{"a", torch::full({3, 2}, value)}, {"b", torch::full({2}, value)}},
          .optimizer = {{"first.a", torch::full({3, 2}, -value, torch::kDouble)}},
          .state = "{\"step\": " + std::to_string(value) + "}"};
}

::testing::AssertionResult same(const NamedTensors& got, const NamedTensors& expected) {
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "count";
  for (const auto& [name, tensor] : expected)
    if (!got.contains(name) || got.at(name).scalar_type() != tensor.scalar_type() ||
        !torch::equal(got.at(name), tensor))
      return ::testing::AssertionFailure() << name;
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult is_some(const std::string& path, double value) {
  const Checkpoint got = read_checkpoint(path), expected = some(value);
  if (got.state != expected.state)
    return ::testing::AssertionFailure() << "state " << got.state;
  if (const auto model = same(got.model, expected.model); !model) return model;
  return same(got.optimizer, expected.optimizer);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class ACheckpoint : public ::testing::Test {
 protected:
  std::string place(const std::string& name) const {
    return folder_ / ("checkpoints/" + name);
  }
  int entries() const {
    int count = 0;
    DIR* const handle = opendir((folder_ / "checkpoints").c_str());
    while (const dirent* entry = readdir(handle)) count += entry->d_name[0] != '.';
    closedir(handle);
    return count;
  }

  const Folder folder_;
  const Checkpoints checkpoints_{folder_ / "checkpoints"};
};

TEST_F(ACheckpoint, IsReadAsItWasWritten) {
  checkpoints_.write(40, some(1.5));
  EXPECT_EQ(checkpoints_.path(40), place("step-40"));
  EXPECT_TRUE(is_some(place("step-40"), 1.5));
  EXPECT_TRUE(same(read_weights(place("step-40")), some(1.5).model));
  EXPECT_EQ(entries(), 1);
  checkpoints_.write(50, {});
  EXPECT_TRUE(read_checkpoint(place("step-50")).model.empty());
  EXPECT_EQ(read_checkpoint(place("step-50")).state, "");
}

TEST_F(ACheckpoint, ReplacesOneOfItsStep) {
  checkpoints_.write(40, some(1));
  checkpoints_.write(40, some(2));
  EXPECT_TRUE(is_some(place("step-40"), 2));
  EXPECT_EQ(entries(), 1);
}

TEST_F(ACheckpoint, ReplacesWhatItsOwnProcessLeftUnfinished) {
  mkdir((folder_ / "checkpoints").c_str(), 0777);
  const std::string left = place("step-40.unfinished-" + std::to_string(getpid()));
  mkdir(left.c_str(), 0777);
  write_file(left + "/model.safetensors", "half");
  write_file(left + "/other", "half");
  checkpoints_.write(40, some(1));
  EXPECT_TRUE(is_some(place("step-40"), 1));
  EXPECT_FALSE(exists(place("step-40/other")));
  EXPECT_EQ(entries(), 1);
}

TEST_F(ACheckpoint, CountsWhenItIsFinished) {
  EXPECT_EQ(checkpoints_.steps(), Steps{});  // no folder yet
  for (const int64_t step : {100, 9, 0, 20}) checkpoints_.write(step, some(1));
  for (const char* const name :
       {"step-30", "step-41.unfinished-7", "best", "step-", "step-x", "step-5x",
        "step--5", "step-+5", "Step-5", "step-99999999999999999999"})
    mkdir(place(name).c_str(), 0777);
  for (const char* const name : {"step-41.unfinished-7", "best", "step-5x"})
    write_file(place(name) + "/DONE", "{}");
  write_file(place("step-60"), "a file");
  EXPECT_EQ(checkpoints_.steps(), (Steps{0, 9, 20, 100}));
}

TEST_F(ACheckpoint, IsCountedOnce) {
  checkpoints_.write(7, some(1));
  mkdir(place("step-07").c_str(), 0777);
  EXPECT_EQ(checkpoints_.steps(), Steps{7});
  checkpoints_.prune(7, 1, {});
  EXPECT_EQ(checkpoints_.steps(), Steps{7});
}

TEST_F(ACheckpoint, IsKeptWhileItIsLastOrBest) {
  for (const int64_t step : {10, 20, 30, 40, 100}) checkpoints_.write(step, some(1));
  checkpoints_.prune(100, 2, {20, 999});
  EXPECT_EQ(checkpoints_.steps(), (Steps{20, 40, 100}));
  EXPECT_EQ(entries(), 3);
  EXPECT_TRUE(is_some(place("step-20"), 1));
  checkpoints_.prune(100, 9, {});
  EXPECT_EQ(checkpoints_.steps(), (Steps{20, 40, 100}));
  checkpoints_.prune(100, 1, {100});
  EXPECT_EQ(checkpoints_.steps(), Steps{100});
  checkpoints_.prune(100, 0, {});
  EXPECT_EQ(entries(), 0);
  Checkpoints(folder_ / "nowhere").prune(1, 1, {});
}

TEST_F(ACheckpoint, IsPrunedWhereItIsUnfinished) {
  for (const int64_t step : {10, 20}) checkpoints_.write(step, some(1));
  for (const char* const name : {"step-30.unfinished-1", "step-40", "best", "step-x"}) {
    mkdir(place(name).c_str(), 0777);
    write_file(place(name) + "/model.safetensors", "half");
  }
  write_file(place("notes.txt"), "mine");
  checkpoints_.prune(40, 2, {});
  EXPECT_EQ(checkpoints_.steps(), (Steps{10, 20}));
  EXPECT_FALSE(exists(place("step-30.unfinished-1")));
  EXPECT_FALSE(exists(place("step-40")));
  for (const char* const name :
       {"best/model.safetensors", "step-x/model.safetensors", "notes.txt"})
    EXPECT_TRUE(exists(place(name))) << name;
}

TEST_F(ACheckpoint, StaysWhereItIsLater) {
  for (const int64_t step : {10, 20, 30, 40}) checkpoints_.write(step, some(1));
  checkpoints_.prune(20, 1, {});
  EXPECT_EQ(checkpoints_.steps(), (Steps{20, 30, 40}));
  checkpoints_.prune(30, 1, {20});
  EXPECT_EQ(checkpoints_.steps(), (Steps{20, 30, 40}));
  checkpoints_.prune(40, 1, {});
  EXPECT_EQ(checkpoints_.steps(), Steps{40});
}

TEST_F(ACheckpoint, RefusesAMissingPart) {
  for (const std::string& part : kParts) {
    checkpoints_.write(1, some(1));
    ASSERT_EQ(unlink((place("step-1/") + part).c_str()), 0);
    const std::string message =
        part == "DONE"
            ? place("step-1") +
                  ": this checkpoint was not finished; choose "
                  "another"
            : "cannot read " + place("step-1/") + part + ": No such file or directory";
    EXPECT_EQ(refusal([&] { read_checkpoint(place("step-1")); }), message);
    const bool needed = part == "DONE" || part == "model.safetensors";
    EXPECT_EQ(refusal([&] { read_weights(place("step-1")); }),
              needed ? message : "accepted");
  }
}

TEST_F(ACheckpoint, RefusesAnyPartCutShort) {
  checkpoints_.write(1, some(1));
  for (const std::string& part : kParts) {
    const std::string path = place("step-1/") + part, whole = read_file(path);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, whole.size() / 2,
                              whole.size() - 3, whole.size() - 1}) {
      write_file(path, whole.substr(0, size));
      const auto message = refusal([&] { read_checkpoint(place("step-1")); });
      if (part == "DONE" && size == whole.size() - 1) {
        EXPECT_EQ(message, "accepted");  // only the last line end
      } else if (part == "DONE") {
        EXPECT_EQ(message, place("step-1") +
                               ": DONE does not say what model.safetensors should be; "
                               "choose another checkpoint");
      } else {
        EXPECT_EQ(message,
                  path + ": differs from what was written; choose another checkpoint");
      }
    }
    write_file(path, whole + " ");
    EXPECT_EQ(
        refusal([&] { read_checkpoint(place("step-1")); }),
        part == "DONE"
            ? "accepted"
            : path + ": differs from what was written; choose another checkpoint");
    write_file(path, whole);
  }
  EXPECT_TRUE(is_some(place("step-1"), 1));
}

TEST_F(ACheckpoint, RefusesAnyBitTurned) {
  checkpoints_.write(1, some(1));
  for (const std::string& part : kParts) {
    const std::string path = place("step-1/") + part, whole = read_file(path);
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string wrong = whole;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << (at % 8)));
      write_file(path, wrong);
      const auto message = refusal([&] { read_checkpoint(place("step-1")); });
      EXPECT_TRUE(message.starts_with(part == "DONE" ? place("step-1") : path))
          << part << " byte " << at << ": " << message;
    }
    write_file(path, whole);
  }
}

TEST_F(ACheckpoint, RefusesASumOfNothing) {
  checkpoints_.write(1, some(1));
  for (const char* const done :
       {"[]", "3", "null", "{}", "{\"model.safetensors\": 1"}) {
    write_file(place("step-1/DONE"), done);
    EXPECT_EQ(refusal([&] { read_weights(place("step-1")); }),
              place("step-1") +
                  ": DONE does not say what model.safetensors should be; "
                  "choose another checkpoint");
  }
  write_file(place("step-1/DONE"), "{\"model.safetensors\": {}}");
  EXPECT_EQ(refusal([&] { read_weights(place("step-1")); }),
            place("step-1/model.safetensors") +
                ": differs from what was written; choose another checkpoint");
}

TEST_F(ACheckpoint, IsNotWhereNoneIs) {
  write_file(folder_ / "file", "");
  for (const std::string& path : {folder_ / "none", folder_ / "file"}) {
    EXPECT_EQ(refusal([&] { read_checkpoint(path); }),
              path + ": there is no such checkpoint");
    EXPECT_EQ(refusal([&] { read_weights(path); }),
              path + ": there is no such checkpoint");
  }
}

TEST_F(ACheckpoint, SaysWhereItCannotBeWritten) {
  write_file(folder_ / "file", "");
  errno = EDOM;  // of something else
  EXPECT_EQ(refusal([&] { Checkpoints(folder_ / "file/c").write(1, some(1)); }),
            "cannot make the folder " + (folder_ / "file/c") + ": Not a directory");
  errno = EDOM;
  EXPECT_EQ(refusal([&] { Checkpoints(folder_ / "file").write(1, some(1)); }),
            "cannot make the folder " + (folder_ / "file/step-1.unfinished-") +
                std::to_string(getpid()) + ": Not a directory");
  checkpoints_.write(1, some(1));
  write_file(place("step-2"), "in the way");
  errno = EDOM;
  EXPECT_EQ(refusal([&] { checkpoints_.write(2, some(2)); }),
            "cannot write " + place("step-2") + ": Not a directory");
  EXPECT_EQ(entries(), 2);
  EXPECT_EQ(read_file(place("step-2")), "in the way");
  EXPECT_TRUE(is_some(place("step-1"), 1));
}

TEST_F(ACheckpoint, LeavesNothingHalfWrittenOnAFullDisk) {
  for (const int64_t step : {1, 2}) checkpoints_.write(step, some(1));
  Checkpoint large = some(3);
  // Each part in turn is the first that is too large.
  for (const std::string part :
       {"state.json", "optimizer.safetensors", "model.safetensors"}) {
    const Tensor much = torch::zeros(5000);
    if (part == "state.json") large.state = std::string(20000, ' ');
    if (part == "optimizer.safetensors") large.optimizer["much"] = much;
    if (part == "model.safetensors") large.model["much"] = much;
    rlimit before = {};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {4096, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto again = refusal([&] { checkpoints_.write(2, large); });
    const auto next = refusal([&] { checkpoints_.write(3, large); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    const std::string unfinished = ".unfinished-" + std::to_string(getpid()) + "/";
    EXPECT_EQ(again, "cannot write " + place("step-2") + unfinished + part +
                         ": File too large");
    EXPECT_EQ(next, "cannot write " + place("step-3") + unfinished + part +
                        ": File too large");
    EXPECT_EQ(checkpoints_.steps(), (Steps{1, 2}));
    EXPECT_EQ(entries(), 2);
    EXPECT_TRUE(is_some(place("step-1"), 1));
    EXPECT_TRUE(is_some(place("step-2"), 1));
  }
}

}  // namespace
}  // namespace longspan::testing
