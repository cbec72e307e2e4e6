#include "longspan/base/whole_file.h"

#include <fstream>
#include <sstream>

#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

class AWholeFile : public ::testing::Test {
 protected:
  std::string content() const {
    std::ifstream file(path_);
    return (std::ostringstream() << file.rdbuf()).str();
  }

  const Folder folder_;
  const std::string path_ = folder_ / "data.txt";
};

TEST_F(AWholeFile, AppearsWhenItIsWhole) {
  {
    WholeFile file(path_);
    file.write("one ");
    file.write("two");
    EXPECT_NE(access(path_.c_str(), F_OK), 0);
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
  EXPECT_EQ(folder_.entries(), 1);
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
  if (access("/dev/full", F_OK) != 0) GTEST_SKIP() << "no full device";
  // A full disk: the unfinished file is a link to the device that is always full.
  const std::string unfinished = path_ + ".unfinished-" + std::to_string(getpid());
  ASSERT_EQ(symlink("/dev/full", unfinished.c_str()), 0);
  EXPECT_EQ(refusal([&] {
              WholeFile file(path_);
              file.write(std::string(1 << 20, 'x'));
              file.commit();
            }),
            "cannot write " + path_ + ": No space left on device");
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace longspan::testing
