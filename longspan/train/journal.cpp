#include "longspan/train/journal.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/whole_file.h"

namespace longspan {
namespace {

using nlohmann::ordered_json;

// Keeps the lines of steps up to `step`. A line that a killed process did not finish
// goes, and the test, which comes again at the end.
void keep_until(const std::string& path, int64_t step) {
  if (access(path.c_str(), F_OK) != 0) return;
  const std::string before = read_file(path);
  std::string kept;
  for (size_t begin = 0; begin < before.size();) {
    const size_t end = before.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = before.substr(begin, end + 1 - begin);
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool stays = event.is_object() && event.contains("step") &&
                       event["step"].is_number_integer() &&
                       event["step"].get<int64_t>() <= step &&
                       event.value("event", "") != "test";
    if (stays) kept += line;
    begin = end + 1;
  }
  if (kept == before) return;
  write_whole(path, kept);
}

std::FILE* append_to(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "ae");
  require(file != nullptr, "cannot write ", path, ": ", std::strerror(errno));
  return file;
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%SZ", &parts);
  return text;
}

}  // namespace

Journal::Journal(const std::string& folder, int64_t step, const JournalOptions& options)
    : options_(options),
      metrics_path_(folder + "/metrics.jsonl"),
      terminal_(isatty(STDERR_FILENO) == 1) {
  keep_until(metrics_path_, step);
  metrics_ = append_to(metrics_path_);
  log_ = append_to(folder + "/log.txt");
  if (options.tensorboard) events_ = std::make_unique<EventFile>(folder, step + 1);
}

Journal::~Journal() {
  if (shown_ > 0) std::fputc('\n', stderr);
  std::fclose(metrics_);
  std::fclose(log_);
}

void Journal::metrics(const std::string& event, int64_t step, const Metrics& values) {
  ordered_json line = {{"step", step}, {"event", event}};
  for (const auto& [name, value] : values) {
    const bool whole = std::abs(value) < 9e15 && value == std::floor(value);
    if (whole)
      line[name] = static_cast<int64_t>(value);
    else
      line[name] = value;  // not finite: null
    if (events_) events_->scalar(event + "/" + name, value, step);
  }
  const std::string text = line.dump() + "\n";
  const bool written =
      std::fwrite(text.data(), 1, text.size(), metrics_) == text.size() &&
      std::fflush(metrics_) == 0;
  require(written, "cannot write ", metrics_path_, ": ", std::strerror(errno));
}

void Journal::log(const std::string& line) {
  std::fprintf(log_, "%s  %s\n", now().c_str(), line.c_str());
  std::fflush(log_);
}

void Journal::say(const std::string& line) {
  log(line);
  if (options_.quiet) return;
  if (shown_ > 0) std::fprintf(stderr, "\r%*s\r", static_cast<int>(shown_), "");
  shown_ = 0;
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Journal::progress(const std::string& line) {
  if (!terminal_ || options_.quiet) return say(line);
  log(line);
  std::fprintf(stderr, "\r%-*s", static_cast<int>(shown_), line.c_str());
  std::fflush(stderr);
  shown_ = line.size();
}

void Journal::flush() {
  if (events_) events_->flush();
  std::fflush(metrics_);
  std::fflush(log_);
}

}  // namespace longspan
