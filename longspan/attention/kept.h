// What takes long to make and depends on little, such as layouts on lengths.

#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace longspan {

// What was made for the keys that were asked for last.
template <class Key, class Made>
class Kept {
 public:
  // make() gives what is not there yet.
  template <class Make>
  std::shared_ptr<const Made> get(const Key& key, const Make& make) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find(all_, key, [](const auto& entry) { return entry.first; });
    if (found != all_.end()) {
      all_.splice(all_.begin(), all_, found);
    } else {
      all_.emplace_front(key, std::make_shared<const Made>(make()));
      if (all_.size() > kMost) all_.pop_back();
    }
    return all_.front().second;
  }

 private:
  static constexpr size_t kMost = 8;

  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Made>>> all_;  // the last used first
};

}  // namespace longspan
