#include "longspan/base/threads.h"

#include <dlfcn.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include "longspan/base/error.h"

namespace longspan {
namespace {

// A function of the BLAS in this process, or null: only OpenBLAS has these names.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

int blas_threads() {
  const auto get = find<int()>("openblas_get_num_threads");
  return get ? get() : 0;
}

void set_blas_threads(int count) {
  const auto set = find<void(int)>("openblas_set_num_threads");
  if (set && count > 0) set(count);
}

// A fact about the place of hardware thread `cpu` in the machine, or -1.
int topology(int cpu, const char* fact) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/" + fact);
  int number = -1;
  return file >> number ? number : -1;
}

// Sets the threads MKL may use for the calling thread and returns those before, 0 being
// as many as for all; does nothing where the BLAS is another.
int set_own_mkl_threads(int count) {
  static const auto set = find<int(int)>("MKL_Set_Num_Threads_Local");
  return set ? set(count) : 0;
}

}  // namespace

int usable_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return std::max(1, at::get_num_threads());
  std::set<std::pair<int, int>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const int core = topology(cpu, "core_id");
    // A machine that does not tell: every hardware thread is a core.
    cores.emplace(core < 0 ? -1 : topology(cpu, "physical_package_id"),
                  core < 0 ? cpu : core);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

void set_threads(int count) {
  require(count >= 1, "threads: must be 1 or more, got ", count);
  set_blas_threads(count);  // first: on OpenMP it sets the threads of loops as well
  at::set_num_threads(count);
}

BlasFacts blas_facts() {
  constexpr int kOwnPool = 1;  // of openblas_get_parallel(); 0 is none, 2 OpenMP's
  if (const auto config = find<char*()>("openblas_get_config")) {
    const auto parallel = find<int()>("openblas_get_parallel");
    return {.name = config(), .own_threads = parallel && parallel() == kOwnPool};
  }
  if (at::hasMKL()) return {.name = "MKL, " + at::get_mkl_version()};
  return {.name = "reference BLAS", .slow = true};
}

OneBlasThread::OneBlasThread() : before_(set_own_mkl_threads(1)) {}

OneBlasThread::~OneBlasThread() { set_own_mkl_threads(before_); }

// Without at::set_num_threads(), which starts a pool of other threads each time, and
// those spin for a while beside what is to be measured.
UseThreads::UseThreads(int count)
    : loops_before_(at::get_num_threads()), blas_before_(blas_threads()) {
  require(count >= 1, "threads: must be 1 or more, got ", count);
  set_blas_threads(count);
  omp_set_num_threads(count);
}

UseThreads::~UseThreads() {
  set_blas_threads(blas_before_);
  omp_set_num_threads(loops_before_);
}

}  // namespace longspan
