// How many threads a process computes with.
//
// LibTorch's loops run on OpenMP; its matrix products run in a BLAS that may count, and
// even own, threads for itself. Unless both are told, the two together use more than
// the machine has, and each waits for the other's.

#pragma once

#include <string>

namespace longspan {

// The cores this process may run on, hardware threads of one core counted once.
// LibTorch guesses half the hardware threads, which is half the cores where each has
// one.
int usable_cores();

// Lets LibTorch and its BLAS each use at most `count` threads.
void set_threads(int count);

// The BLAS that computes matrix products on the CPU.
struct BlasFacts {
  std::string name;          // "OpenBLAS 0.3.21 ...": version and build
  bool slow = false;         // the reference implementation: no blocking, no vectors
  bool own_threads = false;  // keeps a pool of threads beside OpenMP's
};

BlasFacts blas_facts();

// Keeps the BLAS on one thread for the calling thread alone while it lives. Inside a
// parallel loop an OpenBLAS of OpenMP is on one thread by itself (one with threads of
// its own is not: see BlasFacts); MKL runs on one as well, but sums in the pieces of as
// many as it was allowed, unless told so.
class OneBlasThread {
 public:
  OneBlasThread();
  ~OneBlasThread();
  OneBlasThread(const OneBlasThread&) = delete;
  OneBlasThread& operator=(const OneBlasThread&) = delete;

 private:
  int before_ = 0;
};

// Computes with `count` threads while it lives, for tests and benchmarks.
class UseThreads {
 public:
  explicit UseThreads(int count);
  ~UseThreads();
  UseThreads(const UseThreads&) = delete;
  UseThreads& operator=(const UseThreads&) = delete;

 private:
  int loops_before_, blas_before_;
};

}  // namespace longspan
