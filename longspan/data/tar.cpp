#include "longspan/data/tar.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "longspan/base/error.h"

namespace longspan {
namespace {

// Where fields of a header stand.
constexpr size_t kName = 0, kNameSize = 100, kSize = 124, kSizeSize = 12, kType = 156,
                 kMagic = 257;

void check(const std::string& path, bool good) {
  require(good, path, " is damaged or cut off");
}

// The next `size` bytes of an archive.
class Member final : public ByteSource {
 public:
  Member(const std::string& path, ByteSource& archive, size_t size)
      : path_(path), archive_(archive), left_(size) {}

  size_t read(char* to, size_t size) override {
    const size_t wanted = std::min(size, left_);
    check(path_, archive_.read(to, wanted) == wanted);
    left_ -= wanted;
    return wanted;
  }

 private:
  const std::string& path_;
  ByteSource& archive_;
  size_t left_;
};

// What stands before the first zero.
std::string_view text_at(std::string_view header, size_t at, size_t size) {
  const std::string_view field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

size_t size_in(const std::string& path, std::string_view header) {
  std::string_view digits = text_at(header, kSize, kSizeSize);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  size_t size = 0;
  const auto end = std::from_chars(digits.begin(), digits.end(), size, 8).ptr;
  check(path, end != digits.begin());
  return size;
}

void skip(ByteSource& source, std::vector<char>& into) {
  while (source.read(into.data(), into.size()) == into.size()) {
  }
}

}  // namespace

bool begins_archive(std::string_view begin) {
  return begin.size() >= kTarBlock && begin.substr(kMagic, 5) == "ustar";
}

void for_each_member(const std::string& path,
                     const std::function<void(const std::string&, ByteSource&)>& take) {
  const auto archive = open_bytes(path);
  std::vector<char> bytes(kTarBlock), others(size_t{1} << 18);
  const std::string_view header(bytes.data(), bytes.size());
  // Two blocks of zeros are the end, or the end of the file.
  while (const size_t read = archive->read(bytes.data(), kTarBlock)) {
    check(path, read == kTarBlock);
    if (header[kName] == '\0') break;
    check(path, begins_archive(header));
    const size_t size = size_in(path, header);
    const std::string name(text_at(header, kName, kNameSize));
    const bool hidden = name[name.rfind('/') + 1] == '.';
    const bool is_file = header[kType] == '0' || header[kType] == '\0';
    Member member(path, *archive, size);
    if (is_file && !hidden) take(name, member);
    skip(member, others);
    Member rest(path, *archive, (kTarBlock - size % kTarBlock) % kTarBlock);
    skip(rest, others);
  }
}

}  // namespace longspan
