#include "longspan/train/event_file.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using Clock = std::chrono::system_clock;

template <class Word>
std::string little_endian(Word word) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Word); ++i)
    bytes += static_cast<char>(word >> (8 * i) & 0xff);
  return bytes;
}

// The checksum of a record, as its readers expect it: turned and shifted, for records
// may hold records.
std::string masked_checksum(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xa282ead8u);
}

// A message in the encoding of protocol buffers. A field is its number and kind, then
// its value.
class Message {
 public:
  Message& whole(uint32_t field, int64_t value) {
    varint(field << 3 | 0);
    return varint(static_cast<uint64_t>(value));
  }
  Message& real(uint32_t field, double value) {
    varint(field << 3 | 1);
    bytes_ += little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& real(uint32_t field, float value) {
    varint(field << 3 | 5);
    bytes_ += little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& bytes(uint32_t field, std::string_view value) {
    varint(field << 3 | 2).varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& text() const { return bytes_; }

 private:
  // Seven bits a byte, the lowest first; all but the last byte have the high bit.
  Message& varint(uint64_t value) {
    for (; value > 0x7f; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }

  std::string bytes_;
};

// The numbers of the fields are those of TensorBoard's event.proto and summary.proto.
Message event_now(int64_t step) {
  const std::chrono::duration<double> now = Clock::now().time_since_epoch();
  return Message().real(1, now.count()).whole(2, step);
}

std::string host() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || !name[0]) return "localhost";
  return name;
}

// Names in the order in which one process makes them, even within a second.
std::string new_name() {
  static std::atomic<int> made = 0;
  const auto now = std::chrono::floor<std::chrono::seconds>(Clock::now());
  std::string count = std::to_string(made++);
  count.insert(0, count.size() < 6 ? 6 - count.size() : 0, '0');
  return "events.out.tfevents." + std::to_string(now.time_since_epoch().count()) + "." +
         host() + "." + std::to_string(getpid()) + "." + count;
}

}  // namespace

EventFile::EventFile(const std::string& folder, int64_t step) {
  // Another machine of the same name may share the folder.
  do {
    path_ = folder + "/" + new_name();
    file_ = std::fopen(path_.c_str(), "wbxe");
  } while (!file_ && errno == EEXIST);
  if (!file_) fail("cannot write ", path_, ": ", std::strerror(errno));
  try {
    record(event_now(0).bytes(3, "brain.Event:2").text());
    const Message start = Message().whole(1, 1);
    record(event_now(step).bytes(7, start.text()).text());
    flush();
  } catch (...) {
    std::fclose(file_);
    throw;
  }
}

EventFile::~EventFile() { std::fclose(file_); }

void EventFile::scalar(std::string_view tag, double value, int64_t step) {
  const Message one = Message().bytes(1, tag).real(2, static_cast<float>(value));
  const Message summary = Message().bytes(1, one.text());
  record(event_now(step).bytes(5, summary.text()).text());
}

void EventFile::record(std::string_view event) {
  // A reader stops at half a record: nothing may follow one.
  require(!std::ferror(file_), "cannot write ", path_, ": an earlier write failed");
  const std::string length = little_endian(uint64_t{event.size()});
  std::string bytes = length + masked_checksum(length);
  bytes += event;
  bytes += masked_checksum(event);
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    fail("cannot write ", path_, ": ", std::strerror(errno));
}

void EventFile::flush() {
  require(!std::ferror(file_), "cannot write ", path_, ": an earlier write failed");
  if (std::fflush(file_) != 0) fail("cannot write ", path_, ": ", std::strerror(errno));
}

}  // namespace longspan
