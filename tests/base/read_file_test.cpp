#include "longspan/base/read_file.h"

#include <fstream>

#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(ReadFile, GivesEveryByte) {
  const Folder folder;
  for (const size_t size : {0, 1, 65535, 65536, 65537, 200000}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * i % 251);
    std::ofstream(folder / "file", std::ios::binary) << bytes;
    EXPECT_EQ(read_file(folder / "file"), bytes) << size;
  }
}

TEST(ReadFile, SaysWhatItCannotRead) {
  const Folder folder;
  std::ofstream(folder / "file") << "text";
  const auto refusal_of = [](const std::string& path) {
    return refusal([&] { read_file(path); });
  };
  EXPECT_EQ(refusal_of(folder / "none"),
            "cannot read " + (folder / "none") + ": No such file or directory");
  EXPECT_EQ(refusal_of(folder / "."),
            "cannot read " + (folder / ".") + ": Is a directory");
  EXPECT_EQ(refusal_of(folder / "file/none"),
            "cannot read " + (folder / "file/none") + ": Not a directory");
}

}  // namespace
}  // namespace longspan::testing
