// Work on several threads whose results do not depend on how many there are.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include <ATen/Parallel.h>

namespace longspan {

// How many threads each_in_order() uses at most.
inline int64_t workers(int64_t count) {
  return std::min<int64_t>(count, at::get_num_threads());
}

// work(i, worker) for i = 0 .. count - 1, begun in this order, each by whichever thread
// is free; workers count from 0. The longest should come first.
template <class Work>
void each_in_order(int64_t count, const Work& work) {
  std::atomic<int64_t> next = 0;
  std::atomic<int64_t> next_worker = 0;
  at::parallel_for(0, workers(count), 1, [&](int64_t, int64_t) {
    const int64_t worker = next_worker++;
    for (int64_t i = next++; i < count; i = next++) work(i, worker);
  });
}

// Lets pieces of work add to one sum one after the other, in a fixed order. Each waits
// for those whose number is lower; so each_in_order() must begin them first.
class Turn {
 public:
  template <class Add>
  void wait(int32_t number, const Add& add) {
    for (int tries = 0; done_.load(std::memory_order_acquire) != number; ++tries)
      if (tries > 100) std::this_thread::yield();
    add();
    done_.store(number + 1, std::memory_order_release);
  }

 private:
  std::atomic<int32_t> done_ = 0;
};

}  // namespace longspan
