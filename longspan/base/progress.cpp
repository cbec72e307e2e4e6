#include "longspan/base/progress.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace longspan {
namespace {

std::atomic<bool> is_quiet = false;

}  // namespace

Progress::Progress(std::string what, int64_t all)
    : what_(std::move(what)),
      all_(all),
      shown_(!is_quiet && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputc('\n', stderr);
}

void Progress::tell(int64_t done) const {
  if (!shown_) return;
  std::fprintf(stderr, "\r%s: %lld of %lld", what_.c_str(),
               static_cast<long long>(done), static_cast<long long>(all_));
  std::fflush(stderr);
}

void Progress::be_quiet(bool quiet) { is_quiet = quiet; }

}  // namespace longspan
