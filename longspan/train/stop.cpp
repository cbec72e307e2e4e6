#include "longspan/train/stop.h"

#include <ctime>

namespace longspan {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

volatile std::sig_atomic_t noted_signal = 0;
std::timespec noted_at;

double seconds_since(const std::timespec& then) {
  std::timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - then.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec - then.tv_nsec);
}

void note(int number) {
  if (noted_signal == 0) {
    clock_gettime(CLOCK_MONOTONIC, &noted_at);
    noted_signal = number;
  } else if (seconds_since(noted_at) > StopSignals::kOne) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

StopSignals::StopSignals() {
  noted_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &before_[i]);
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int StopSignals::noted() { return noted_signal; }

}  // namespace longspan
