#include "longspan/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

constexpr std::string_view kMagic = "longspan tokens\n";
constexpr int64_t kVersion = 2;
constexpr size_t kWord = 8;

struct Footer {
  uint64_t ids = 0, words = 0, bytes = 0, documents = 0, unknown = 0, kept = 0,
           ids_checksum = 0, frame_checksum = 0;
};

std::string_view bytes_of(const auto& list) {
  return {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(list[0])};
}

// All but the last.
std::string_view numbers_of(const Footer& footer) {
  return {reinterpret_cast<const char*>(&footer), sizeof(footer) - kWord};
}

size_t rounded(size_t size) { return (size + kWord - 1) / kWord * kWord; }

// A file in memory, as long as this lives.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (handle < 0 || fstat(handle, &status) != 0) refuse(path, handle);
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) {
      data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, handle, 0);
      if (data_ == MAP_FAILED) refuse(path, handle);
    }
    close(handle);
  }
  ~Mapped() {
    if (size_ > 0) munmap(data_, size_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  [[noreturn]] static void refuse(const std::string& path, int handle) {
    const int reason = errno;
    if (handle >= 0) close(handle);
    fail("cannot read ", path, ": ", std::strerror(reason));
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& path, const TokenFileFacts& facts)
    : file_(path), width_(width_of_ids(facts.ids)) {
  const std::string header = nlohmann::ordered_json{
      {"version", kVersion},
      {"kind", facts.kind},
      {"ids", facts.ids},
      {"width", width_},
      {"vocabulary",
       facts.vocabulary.size()}}.dump();
  const std::array<uint64_t, 1> size = {header.size()};
  std::string frame(kMagic);
  frame.append(bytes_of(size)).append(header).append(facts.vocabulary);
  frame.resize(rounded(frame.size()));
  write_frame(frame);
}

void TokenFileWriter::write_frame(std::string_view bytes) {
  frame_checksum_ = crc32c(bytes, frame_checksum_);
  file_.write(bytes);
}

void TokenFileWriter::add(std::span<const int32_t> ids) {
  const auto write = [&](std::string_view bytes) {
    ids_checksum_ = crc32c(bytes, ids_checksum_);
    file_.write(bytes);
  };
  count_ += std::ssize(ids);
  if (width_ == 4) return write(bytes_of(ids));
  write(bytes_of(std::vector<uint16_t>(ids.begin(), ids.end())));
}

void TokenFileWriter::commit(const TextCounts& counts) {
  const auto size = static_cast<size_t>(count_) * static_cast<size_t>(width_);
  write_frame(std::string(rounded(size) - size, '\0'));
  Footer footer{.ids = static_cast<uint64_t>(count_),
                .words = static_cast<uint64_t>(counts.words),
                .bytes = static_cast<uint64_t>(counts.bytes),
                .documents = static_cast<uint64_t>(counts.documents),
                .unknown = static_cast<uint64_t>(counts.unknown),
                .kept = counts.kept,
                .ids_checksum = ids_checksum_};
  footer.frame_checksum = crc32c(numbers_of(footer), frame_checksum_);
  file_.write({reinterpret_cast<const char*>(&footer), sizeof(footer)});
  file_.commit();
}

bool is_token_file(const std::string& path) {
  const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) return false;
  std::string begin(kMagic.size(), '\0');
  const ssize_t got = read(handle, begin.data(), begin.size());
  close(handle);
  return got == std::ssize(kMagic) && begin == kMagic;
}

TokenFile open_token_file(const std::string& path) {
  const auto mapped = std::make_shared<const Mapped>(path);
  const std::string_view all = mapped->bytes();
  require(all.starts_with(kMagic), path,
          " is no file of tokens; `longspan data tokens` writes one");
  const auto check = [&](bool good) {
    require(good, path, " is damaged or cut off; write it again");
  };
  const size_t first = kMagic.size() + kWord;
  check(all.size() % kWord == 0 && all.size() >= first + sizeof(Footer));
  uint64_t header_size = 0;
  std::memcpy(&header_size, all.data() + kMagic.size(), kWord);
  check(header_size <= all.size() - first - sizeof(Footer));
  const auto header = nlohmann::json::parse(all.substr(first, header_size), nullptr,
                                            /*allow_exceptions=*/false);
  check(header.is_object() && header.contains("version"));
  require(header["version"] == kVersion, path, " is a file of tokens of version ",
          header["version"].dump(), "; this program reads version ", kVersion,
          "; write it again");
  Footer footer = {};
  const size_t footer_at = all.size() - sizeof(footer);
  std::memcpy(&footer, all.data() + footer_at, sizeof(footer));
  TokenFile file;
  try {
    const size_t vocabulary = header.at("vocabulary");
    const int width = header.at("width");
    file.facts = {.kind = header.at("kind"), .ids = header.at("ids")};
    const size_t vocabulary_at = first + header_size;
    check(vocabulary <= footer_at - vocabulary_at &&
          width == width_of_ids(file.facts.ids));
    file.facts.vocabulary = all.substr(vocabulary_at, vocabulary);
    const size_t ids_at = rounded(vocabulary_at + vocabulary);
    check(ids_at <= footer_at && footer.ids <= all.size());
    const size_t ids_size = footer.ids * static_cast<size_t>(width);
    check(ids_at + rounded(ids_size) == footer_at);
    uint32_t checksum = crc32c(all.substr(0, ids_at));
    checksum =
        crc32c(all.substr(ids_at + ids_size, footer_at - ids_at - ids_size), checksum);
    checksum = crc32c(numbers_of(footer), checksum);
    check(checksum == footer.frame_checksum);
    file.tokens = {all.data() + ids_at, width, static_cast<int64_t>(footer.ids),
                   static_cast<uint32_t>(footer.ids_checksum), mapped};
  } catch (const nlohmann::json::exception&) {
    check(false);
  }
  file.counts = {.bytes = static_cast<int64_t>(footer.bytes),
                 .words = static_cast<int64_t>(footer.words),
                 .documents = static_cast<int64_t>(footer.documents),
                 .unknown = static_cast<int64_t>(footer.unknown),
                 .kept = footer.kept != 0};
  return file;
}

}  // namespace longspan
