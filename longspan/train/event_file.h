// Event files that TensorBoard reads.

#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace longspan {

// Writes scalars to a new file `events.out.tfevents.SECONDS.HOST...` in `folder`. What
// a flush has written stays readable, whatever comes after. Every failure is an Error
// that names the path.
class EventFile {
 public:
  // `step`: TensorBoard drops what other files of the folder say from this step on.
  EventFile(const std::string& folder, int64_t step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void scalar(std::string_view tag, double value, int64_t step);
  void flush();

 private:
  void record(std::string_view event);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace longspan
