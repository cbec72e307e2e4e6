#include "longspan/train/stop.h"

namespace longspan {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

volatile std::sig_atomic_t noted_signal = 0;

void note(int number) {
  noted_signal = number;
  for (const int any : kSignals) std::signal(any, SIG_DFL);
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
