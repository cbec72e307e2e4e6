#include "longspan/train/event_file.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "longspan/base/checksum.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

struct Event {
  double time = 0;
  int64_t step = 0;
  std::string version, tag;
  float value = 0;
  int status = 0;
};

// Bytes read from the front.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  bool left() const { return !bytes_.empty(); }

  std::string_view take(size_t count) {
    if (count > bytes_.size()) throw std::runtime_error("ends early");
    const auto taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <class Value>
  Value fixed() {
    Value value;
    std::memcpy(&value, take(sizeof(Value)).data(), sizeof(Value));
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = fixed<uint8_t>();
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view text() { return take(varint()); }

 private:
  std::string_view bytes_;
};

void parse_value(Bytes bytes, Event& event) {
  while (bytes.left()) {
    const auto key = bytes.varint();
    if (key == (1 << 3 | 2))
      event.tag = bytes.text();
    else if (key == (2 << 3 | 5))
      event.value = bytes.fixed<float>();
    else
      ADD_FAILURE() << "value: key " << key;
  }
}

Event parse_event(Bytes bytes) {
  Event event;
  while (bytes.left()) {
    const auto key = bytes.varint();
    if (key == (1 << 3 | 1)) {
      event.time = bytes.fixed<double>();
    } else if (key == (2 << 3 | 0)) {
      event.step = static_cast<int64_t>(bytes.varint());
    } else if (key == (3 << 3 | 2)) {
      event.version = bytes.text();
    } else if (key == (5 << 3 | 2)) {
      Bytes summary(bytes.text());
      EXPECT_EQ(summary.varint(), 1u << 3 | 2);
      parse_value(Bytes(summary.text()), event);
      EXPECT_FALSE(summary.left());
    } else if (key == (7 << 3 | 2)) {
      Bytes session(bytes.text());
      EXPECT_EQ(session.varint(), 1u << 3 | 0);
      event.status = static_cast<int>(session.varint());
      EXPECT_FALSE(session.left());
    } else {
      ADD_FAILURE() << "event: key " << key;
    }
  }
  return event;
}

uint32_t unmasked(uint32_t checksum) {
  const uint32_t turned = checksum - 0xa282ead8u;
  return turned >> 17 | turned << 15;
}

std::vector<Event> read_events(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content = (std::ostringstream() << file.rdbuf()).str();
  std::vector<Event> events;
  for (Bytes bytes(content); bytes.left();) {
    const auto length = bytes.take(8);
    EXPECT_EQ(unmasked(bytes.fixed<uint32_t>()), crc32c(length));
    const auto event = bytes.take(Bytes(length).fixed<uint64_t>());
    EXPECT_EQ(unmasked(bytes.fixed<uint32_t>()), crc32c(event));
    events.push_back(parse_event(Bytes(event)));
  }
  return events;
}

class AnEventFile : public ::testing::Test {
 protected:
  // In the order in which TensorBoard reads them.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    DIR* const folder = opendir(place_.c_str());
    while (const dirent* entry = readdir(folder))
      if (entry->d_name[0] != '.') all.emplace_back(entry->d_name);
    closedir(folder);
    std::sort(all.begin(), all.end());
    return all;
  }
  std::vector<Event> only() const {
    const auto all = names();
    EXPECT_EQ(all.size(), 1u);
    return read_events(folder_ / all.front());
  }

  const Folder folder_;
  const std::string place_ = folder_ / ".";
};

TEST_F(AnEventFile, BeginsWithItsVersionAndTheStart) {
  const EventFile file(place_, 70);
  const auto events = only();  // without a flush
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[0].step, 0);
  EXPECT_EQ(events[1].status, 1);
  EXPECT_EQ(events[1].step, 70);
}

TEST_F(AnEventFile, HasTheNameTensorBoardLooksFor) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  const EventFile file(place_, 0);
  const std::string begin = "events.out.tfevents.", name = names().at(0);
  ASSERT_TRUE(name.starts_with(begin)) << name;
  EXPECT_NEAR(std::stod(name.substr(begin.size(), 10)), now.count(), 5);
  EXPECT_NE(name.find("." + std::to_string(getpid()) + "."), name.npos) << name;
}

TEST_F(AnEventFile, HoldsItsScalars) {
  struct Given {
    std::string tag;
    double value;
    int64_t step;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const Given given[] = {{"loss/train", 0.1, 1},
                         {"", -2.5, 127},
                         {"täg", 0, 128},
                         {std::string(1000, 't'), 1e30, int64_t{1} << 40},
                         {"infinite", infinity, 0},
                         {"too large", -1e300, 5},
                         {"far", 1, std::numeric_limits<int64_t>::max()},
                         {"before", 1, -3}};
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  {
    EventFile file(place_, 0);
    for (const auto& [tag, value, step] : given) file.scalar(tag, value, step);
    file.scalar("no number", NAN, 6);
  }
  const auto events = only();
  ASSERT_EQ(events.size(), 2 + std::size(given) + 1);
  for (size_t i = 0; i < std::size(given); ++i) {
    EXPECT_EQ(events[2 + i].tag, given[i].tag);
    EXPECT_EQ(events[2 + i].value, static_cast<float>(given[i].value));
    EXPECT_EQ(events[2 + i].step, given[i].step);
    EXPECT_NEAR(events[2 + i].time, now.count(), 60);
  }
  EXPECT_TRUE(std::isnan(events.back().value));
}

// Written out by hand from event.proto and summary.proto, but for times.
TEST_F(AnEventFile, HasTheBytesOfTheFormat) {
  { EventFile(place_, 3).scalar("loss", 0.5, 300); }
  std::ifstream file(folder_ / names().at(0), std::ios::binary);
  std::string bytes = (std::ostringstream() << file.rdbuf()).str();
  const auto without_time = [&](size_t record, size_t size) {
    return bytes.substr(record + 12 + 9, size - 9);
  };
  // The length 26, its checksum, then 0x09 and the time.
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes[12], '\x09');
  EXPECT_EQ(without_time(0, 26), std::string("\x10\0\x1a\rbrain.Event:2", 17));
  EXPECT_EQ(without_time(42, 15), std::string("\x10\x03\x3a\x02\x08\x01", 6));
  EXPECT_EQ(without_time(73, 27),
            std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f", 18));
}

TEST_F(AnEventFile, IsReadableAfterAFlush) {
  EventFile file(place_, 0);
  for (int step = 0; step < 5; ++step) {
    file.scalar("a", step, step);
    file.flush();
    EXPECT_EQ(only().size(), 3u + step);
  }
}

TEST_F(AnEventFile, NeverTakesTheNameOfAnother) {
  constexpr int kFiles = 120;
  for (int i = 0; i < kFiles; ++i) const EventFile file(place_, i);
  const auto all = names();
  ASSERT_EQ(all.size(), size_t{kFiles});
  for (int i = 0; i < kFiles; ++i)
    EXPECT_EQ(read_events(folder_ / all[i]).at(1).step, i);
}

TEST_F(AnEventFile, LeavesAFileOfItsNameAlone) {
  { const EventFile file(place_, 0); }
  const std::string begin = "events.out.tfevents.", first = names().at(0);
  const auto seconds = std::stoll(first.substr(begin.size(), 10));
  const auto made = std::stoi(first.substr(first.rfind('.') + 1));
  const auto name = [&](int64_t second, int count) {
    std::string number = std::to_string(1000000 + count).substr(1);
    return begin + std::to_string(seconds + second) +
           first.substr(begin.size() + 10, first.rfind('.') - begin.size() - 9) +
           number;
  };
  ASSERT_EQ(name(0, made), first);
  for (int second = 0; second < 10; ++second)
    std::ofstream(folder_ / name(second, made + 1)) << "another";
  { const EventFile file(place_, 0); }
  EXPECT_EQ(names().size(), 12u);
  for (int second = 0; second < 10; ++second) {
    std::ifstream file(folder_ / name(second, made + 1));
    EXPECT_EQ((std::ostringstream() << file.rdbuf()).str(), "another");
  }
}

TEST_F(AnEventFile, SaysWhereItCannotWrite) {
  const auto message = refusal([] { EventFile("/nowhere", 0); });
  EXPECT_TRUE(message.starts_with("cannot write /nowhere/events.out.tfevents."));
  EXPECT_TRUE(message.ends_with(": No such file or directory"));
}

TEST_F(AnEventFile, EndsAtTheFirstFailure) {
  EventFile file(place_, 0);
  const std::string path = place_ + "/" + names().at(0);
  // A full disk: no file of this process may grow beyond 4096 bytes.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto first = refusal([&] {
    for (int step = 0; step < 1000; ++step) file.scalar("a", 0, step);
    file.flush();
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  const std::string earlier = "cannot write " + path + ": an earlier write failed";
  EXPECT_EQ(first, "cannot write " + path + ": File too large");
  EXPECT_EQ(refusal([&] { file.scalar("a", 0, 0); }), earlier);
  EXPECT_EQ(refusal([&] { file.flush(); }), earlier);
}

}  // namespace
}  // namespace longspan::testing
