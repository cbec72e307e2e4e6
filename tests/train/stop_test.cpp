#include "longspan/train/stop.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

void before(int) {}

// How a child that does this ends: the number of a signal, or 0.
int signal_that_ends(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    work();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(StopSignals, AreNoted) {
  for (const int number : {SIGINT, SIGTERM}) {
    const StopSignals signals;
    EXPECT_EQ(StopSignals::noted(), 0);
    raise(number);
    EXPECT_EQ(StopSignals::noted(), number);
  }
  EXPECT_EQ(StopSignals::noted(), SIGTERM);  // what came is known afterwards
}

TEST(StopSignals, EndTheProcessTheSecondTime) {
  for (const int first : {SIGINT, SIGTERM})
    for (const int second : {SIGINT, SIGTERM}) {
      const auto once = [&] {
        const StopSignals signals;
        raise(first);
      };
      const auto twice = [&] {
        const StopSignals signals;
        raise(first);
        raise(second);
      };
      const auto again_later = [&] {
        const StopSignals signals;
        raise(first);
        usleep(static_cast<useconds_t>(1.2e6 * StopSignals::kOne));
        raise(second);
      };
      EXPECT_EQ(signal_that_ends(once), 0);
      EXPECT_EQ(signal_that_ends(twice), 0) << first;  // one, sent twice
      EXPECT_EQ(signal_that_ends(again_later), second) << first;
    }
}

TEST(StopSignals, EndTheProcessAfterwards) {
  const auto after = [] {
    { const StopSignals signals; }
    raise(SIGTERM);
  };
  EXPECT_EQ(signal_that_ends(after), SIGTERM);
}

TEST(StopSignals, LeaveTheHandlersAsTheyWere) {
  for (const int came : {0, SIGINT, SIGTERM}) {
    const auto interrupt = std::signal(SIGINT, before);
    const auto terminate = std::signal(SIGTERM, SIG_IGN);
    {
      const StopSignals signals;
      if (came != 0) raise(came);
    }
    EXPECT_EQ(std::signal(SIGINT, interrupt), &before) << came;
    EXPECT_EQ(std::signal(SIGTERM, terminate), SIG_IGN) << came;
  }
}

}  // namespace
}  // namespace longspan::testing
