// Work done ahead on a thread of its own.

#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace longspan {

// Calls `make` again and again, at most `ahead` results before they are taken; one at a
// time and in order, so that the results do not depend on `ahead`. With `ahead` 0 there
// is no thread. What `make` throws is thrown by next().
template <class T>
class Prefetch {
 public:
  Prefetch(std::function<T()> make, int64_t ahead)
      : make_(std::move(make)), ahead_(static_cast<size_t>(ahead)) {
    if (ahead_ > 0) thread_ = std::thread([this] { work(); });
  }
  ~Prefetch() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  T next() {
    if (ahead_ == 0) return make_();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    T result = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return result;
  }

 private:
  void work() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || ready_.size() < ahead_; });
        if (ending_) return;
      }
      try {
        T result = make_();
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(result));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
        changed_.notify_all();
        return;
      }
      changed_.notify_all();
    }
  }

  std::function<T()> make_;
  size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> ready_;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace longspan
