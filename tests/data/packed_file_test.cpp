#include "longspan/data/packed_file.h"

#include <fstream>

#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

// "first\nsecond\r\n\nlast" as xz and gzip write it.
constexpr unsigned char kXz[] = {
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02,
    0x00, 0x21, 0x01, 0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0x01, 0x00,
    0x12, 0x66, 0x69, 0x72, 0x73, 0x74, 0x0a, 0x73, 0x65, 0x63, 0x6f, 0x6e, 0x64,
    0x0d, 0x0a, 0x0a, 0x6c, 0x61, 0x73, 0x74, 0x00, 0x00, 0xd7, 0x9a, 0xf5, 0x35,
    0x05, 0x90, 0xcc, 0x46, 0x00, 0x01, 0x2b, 0x13, 0x9c, 0x09, 0x48, 0xd2, 0x1f,
    0xb6, 0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a};
constexpr unsigned char kGzip[] = {
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x4b, 0xcb, 0x2c,
    0x2a, 0x2e, 0xe1, 0x2a, 0x4e, 0x4d, 0xce, 0xcf, 0x4b, 0xe1, 0xe5, 0xe2, 0xca,
    0x49, 0x2c, 0x2e, 0x01, 0x00, 0xac, 0xc8, 0xd7, 0x54, 0x13, 0x00, 0x00, 0x00};

template <size_t size>
std::string_view bytes_of(const unsigned char (&packed)[size]) {
  return {reinterpret_cast<const char*>(packed), size};
}

class PackedFile : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::vector<std::string> lines(const std::string& path) const {
    std::vector<std::string> lines;
    for_each_line(path, [&](std::string_view line, int64_t number) {
      lines.emplace_back(line);
      EXPECT_EQ(number, std::ssize(lines));
    });
    return lines;
  }

  const Folder folder_;
  const std::string text_ = "first\nsecond\r\n\nlast";
};

// Whether the build has the library; else its refusal says so.
bool can_unpack(const std::string& path) {
  const std::string message = refusal([&] { read_unpacked(path); });
  return message.find("this build has no") == std::string::npos;
}

TEST_F(PackedFile, IsUnpackedByTheEndOfItsName) {
  const std::string plain = write("plain.txt", text_);
  EXPECT_EQ(read_unpacked(plain), text_);
  const std::vector<std::string> expected = {"first", "second", "", "last"};
  EXPECT_EQ(lines(plain), expected);
  for (const auto& [name, packed] :
       {std::pair("a.xz", bytes_of(kXz)), {"b.gz", bytes_of(kGzip)}}) {
    const std::string path = write(name, packed);
    if (!can_unpack(path)) continue;
    EXPECT_EQ(read_unpacked(path), text_);
    EXPECT_EQ(found_file(folder_ / std::string(name).substr(0, 1)), path);
    EXPECT_EQ(lines(path), expected);
    // One after the other in one file.
    write(name, std::string(packed) + std::string(packed));
    EXPECT_EQ(read_unpacked(path), text_ + text_);
  }
}

TEST_F(PackedFile, IsThePlainOneIfThereAreBoth) {
  const std::string path = write("a", "plain");
  write("a.xz", bytes_of(kXz));
  EXPECT_EQ(lines(found_file(path)), std::vector<std::string>{"plain"});
  EXPECT_EQ(found_file(folder_ / "b"), folder_ / "b");
}

TEST_F(PackedFile, HasLinesOfAnyLength) {
  std::vector<std::string> expected;
  std::string text;
  for (const size_t length : {size_t{3000000}, size_t{0}, (size_t{1} << 20) - 1}) {
    expected.emplace_back(length, 'x');
    text += expected.back() + "\n";
  }
  EXPECT_EQ(lines(write("long", text)), expected);
  EXPECT_TRUE(lines(write("empty", "")).empty());
}

TEST_F(PackedFile, IsRefusedWhereItIsDamaged) {
  for (const auto& [name, packed] :
       {std::pair("a.xz", bytes_of(kXz)), {"b.gz", bytes_of(kGzip)}}) {
    const std::string path = write(name, packed.substr(0, packed.size() / 2));
    if (!can_unpack(path)) continue;
    for (const char* const other : {"", "no such thing as this one"}) {
      if (*other) write(name, other);
      const std::string message = refusal([&] { read_unpacked(path); });
      EXPECT_TRUE(message.starts_with(path + " is ")) << message;
    }
  }
  EXPECT_EQ(refusal([&] { lines(folder_ / "none"); }),
            "cannot read " + (folder_ / "none") + ": No such file or directory");
}

}  // namespace
}  // namespace longspan::testing
