#include "longspan/train/arena_jobs.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <set>

#include <ATen/Parallel.h>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/thrown.h"
#include "longspan/base/whole_file.h"
#include "longspan/train/run_folder.h"
#include "longspan/train/stop.h"

namespace longspan {
namespace {

constexpr useconds_t kPause = 20'000;
constexpr int kBySignal = 128;

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string still_trains(const ArenaJob& job) {
  return job.title + ": waits for another process that trains in " + job.folder;
}

void refuse(const ArenaWork& work, ArenaJob& job, const std::string& reason) {
  job.refused = reason;
  work.tell(job.title + ": " + reason);
  work.refused();
}

// Refuses a run that was begun otherwise, and less training than one has had.
void check_begun(const ArenaJob& job) {
  check_same(job.experiment, job.folder);
  if (!exists(job.folder + "/result.json")) return;
  const TrainOptions before = stored_experiment(job.folder).train,
                     &now = job.experiment.train;
  const auto check = [&](const char* name, auto had, auto wanted) {
    require(wanted == 0 || (had != 0 && wanted >= had), job.folder,
            ": was trained with train.", name, " ", had, ", so it cannot be of ",
            wanted, "; choose another name or folder");
  };
  check("steps", before.steps, now.steps);
  check("epochs", before.epochs, now.epochs);
  check("tokens", before.tokens, now.tokens);
  check("minutes", before.minutes, now.minutes);
}

// Whether the run is at its end, with the budget and the data of the job.
bool is_trained(const ArenaJob& job) {
  if (!exists(job.folder + "/result.json")) return false;
  Experiment before = stored_experiment(job.folder), now = job.experiment;
  static const std::set<std::string> matters = {"task.data",     "train.steps",
                                                "train.epochs",  "train.tokens",
                                                "train.minutes", "train.patience"};
  return std::ranges::none_of(
      differing(fields(before), fields(now)),
      [](const std::string& name) { return matters.contains(name); });
}

int train_in_turn(const ArenaWork& work, std::vector<ArenaJob>& jobs) {
  for (ArenaJob& job : jobs) {
    if (!job.refused.empty()) continue;
    try {
      if (is_trained_in(job.folder)) work.tell(still_trains(job));
      while (is_trained_in(job.folder)) usleep(kPause);
      if (is_trained(job)) continue;
      work.tell(job.title);
      const RunResult result =
          run_experiment(job.experiment,
                         {.folder = job.folder, .resume = "auto", .quiet = work.quiet});
      if (result.training.signal != 0) return result.training.signal;
    } catch (...) {
      refuse(work, job, message_of(std::current_exception()));
    }
  }
  return 0;
}

// The last line of what a process complained of.
std::string complaint(const std::string& path) {
  std::string text = exists(path) ? read_file(path) : std::string();
  while (text.ends_with('\n')) text.pop_back();
  text = text.substr(text.rfind('\n') + 1);
  constexpr std::string_view kProgram = "longspan: ";
  if (text.starts_with(kProgram)) text = text.substr(kProgram.size());
  return text;
}

// Trains as a process of its own, which writes what it complains of into `complaints`.
pid_t start_training(std::vector<std::string> words, const std::string& complaints) {
  const auto before = getpid();
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t process = fork();
  require(process >= 0, "cannot start a process: ", std::strerror(errno));
  if (process > 0) return process;
  // Between fork and exec only what is safe in a signal handler.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != before) _exit(1);
  const int out = open("/dev/null", O_WRONLY);
  const int errors = open(complaints.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (out < 0 || errors < 0 || dup2(out, 1) < 0 || dup2(errors, 2) < 0) _exit(1);
  execvp(pointers[0], pointers.data());
  _exit(127);
}

class Processes {
 public:
  explicit Processes(const ArenaWork& work) : work_(work) {
    // The threads of all together are those of this process.
    threads_ = std::max<int64_t>(1, at::get_num_threads() / work.processes);
  }

  int train(std::vector<ArenaJob>& jobs) {
    const StopSignals signals;
    std::list<ArenaJob*> waiting;
    for (ArenaJob& job : jobs)
      if (job.refused.empty()) waiting.push_back(&job);
    std::set<const ArenaJob*> told;
    while (!waiting.empty() || !running_.empty()) {
      if (signal_ == 0 && StopSignals::noted() != 0) stop(StopSignals::noted());
      if (signal_ != 0) waiting.clear();
      for (auto at = waiting.begin(); at != waiting.end() && has_room();) {
        ArenaJob& job = **at;
        if (is_trained_in(job.folder)) {
          if (told.insert(&job).second) work_.tell(still_trains(job));
          ++at;
          continue;
        }
        start(job);
        at = waiting.erase(at);
      }
      collect();
      usleep(kPause);
    }
    return signal_;
  }

 private:
  void stop(int signal) {
    signal_ = signal;
    for (const auto& [process, job] : running_) kill(process, signal);
  }

  bool has_room() const {
    return running_.size() < static_cast<size_t>(work_.processes);
  }

  static std::string beside(const ArenaJob& job, const char* ending) {
    return job.folder + ending;
  }

  void start(ArenaJob& job) {
    try {
      if (is_trained(job)) return;
      work_.tell(job.title);
      std::error_code failure;
      std::filesystem::create_directories(job.folder.substr(0, job.folder.rfind('/')),
                                          failure);
      require(!failure, "cannot make the folder of ", job.folder, ": ",
              failure.message());
      Experiment experiment = job.experiment;
      write_whole(beside(job, ".yaml"), config_text(fields(experiment)));
      running_[start_training(
          {work_.program, "train", "-c", beside(job, ".yaml"), "--out", job.folder,
           "--resume", "auto", "--threads", std::to_string(threads_), "--at-once",
           std::to_string(work_.processes), "--quiet"},
          beside(job, ".errors"))] = &job;
    } catch (...) {
      refuse(work_, job, message_of(std::current_exception()));
    }
  }

  void collect() {
    for (auto at = running_.begin(); at != running_.end();) {
      int status = 0;
      if (waitpid(at->first, &status, WNOHANG) == 0) {
        ++at;
        continue;
      }
      ArenaJob& job = *at->second;
      at = running_.erase(at);
      finish(job, status);
    }
  }

  void finish(ArenaJob& job, int status) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    const std::string errors = beside(job, ".errors");
    if (WIFEXITED(status) && code > kBySignal) {  // saved and stopped
      if (signal_ == 0) stop(code - kBySignal);
    } else if (signal_ == 0 && (!WIFEXITED(status) || code != 0)) {
      std::string reason = WIFSIGNALED(status) ? "its process was killed by signal " +
                                                     std::to_string(WTERMSIG(status))
                                               : complaint(errors);
      if (reason.empty())
        reason = work_.program + " ended with exit code " + std::to_string(code);
      refuse(work_, job, reason);
    }
    unlink(errors.c_str());
  }

  const ArenaWork& work_;
  int64_t threads_ = 1;
  std::map<pid_t, ArenaJob*> running_;
  int signal_ = 0;
};

}  // namespace

void refuse_begun(std::vector<ArenaJob>& jobs) {
  for (ArenaJob& job : jobs) {
    try {
      if (exists(job.folder + "/config.yaml")) check_begun(job);
    } catch (...) {
      job.refused = message_of(std::current_exception());
    }
  }
}

int train_jobs(const ArenaWork& work, std::vector<ArenaJob>& jobs) {
  if (work.processes == 1) return train_in_turn(work, jobs);
  require(!work.program.empty(), "arena.processes, ", work.processes,
          ", needs the program that is to be started; must be 1");
  return Processes(work).train(jobs);
}

}  // namespace longspan
