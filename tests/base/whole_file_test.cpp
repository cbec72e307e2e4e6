#include "longspan/base/whole_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

namespace fs = std::filesystem;

class AWholeFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string content() const {
    std::ifstream file(path_);
    return (std::ostringstream() << file.rdbuf()).str();
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("whole-file-" + std::to_string(getpid()));
  const std::string path_ = (folder_ / "data.txt").string();
};

TEST_F(AWholeFile, AppearsWhenItIsWhole) {
  {
    WholeFile file(path_);
    file.write("one ");
    file.write("two");
    EXPECT_FALSE(fs::exists(path_));
    file.commit();
  }
  EXPECT_EQ(content(), "one two");
}

TEST_F(AWholeFile, LeavesNothingBehindUnlessCommitted) {
  std::ofstream(path_) << "old";
  {
    WholeFile file(path_);
    file.write("new");
  }
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(AWholeFile, ReplacesWhatWasThere) {
  std::ofstream(path_) << "old";
  WholeFile file(path_);
  file.write("new");
  file.commit();
  EXPECT_EQ(content(), "new");
}

TEST_F(AWholeFile, SaysWhereItCannotWrite) {
  EXPECT_EQ(refusal([] { WholeFile file("/nowhere/data.txt"); }),
            "cannot write /nowhere/data.txt: No such file or directory");
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no full device";
  // A full disk: the unfinished file is a link to the device that is always full.
  fs::create_symlink("/dev/full", path_ + ".unfinished-" + std::to_string(getpid()));
  EXPECT_EQ(refusal([&] {
              WholeFile file(path_);
              file.write(std::string(1 << 20, 'x'));
              file.commit();
            }),
            "cannot write " + path_ + ": No space left on device");
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace longspan::testing
