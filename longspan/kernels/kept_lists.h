// Lists in device memory that are made from layouts, and kept for calls with the same.

#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "longspan/kernels/attention_call.h"

namespace longspan {

// Arrays one after the other, each at a multiple of 16 bytes, to be sent at once.
class Parcel {
 public:
  // Where the items will be in what is sent.
  template <class Item>
  size_t add(const std::vector<Item>& items) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    const auto* const from = reinterpret_cast<const uint8_t*>(items.data());
    bytes_.resize(at);
    bytes_.insert(bytes_.end(), from, from + items.size() * sizeof(Item));
    return at;
  }

  torch::Tensor sent(torch::Device device) const;

  template <class Item>
  static const Item* at(const torch::Tensor& memory, size_t place) {
    return reinterpret_cast<const Item*>(memory.data_ptr<uint8_t>() + place);
  }

 private:
  std::vector<uint8_t> bytes_;
};

// What the lists of a call depend on. It holds the layouts, so that no other comes to
// lie where one of them was.
class ListsKey {
 public:
  ListsKey(const AttentionCall& call, const AttentionSizes& sizes, int kind = 0);

  bool operator==(const ListsKey& other) const;

 private:
  c10::Stream stream_;  // memory belongs to the stream it was made on
  int kind_;
  int64_t heads_, query_places_;
  std::vector<int64_t> key_places_;
  std::vector<std::optional<Layout>> layouts_;
};

// Those used last. `Lists` has a tensor `memory`. Kept by a pointer that is never
// freed: when a program ends the device may be gone.
template <class Lists, class Key = ListsKey>
class KeptLists {
 public:
  // make() gives lists that are not there yet.
  template <class Make>
  std::shared_ptr<const Lists> get(const Key& key, const Make& make) {
    const std::lock_guard lock(mutex_);
    for (auto one = all_.begin(); one != all_.end(); ++one)
      if (one->first == key) {
        all_.splice(all_.begin(), all_, one);
        return one->second;
      }
    all_.emplace_front(key, std::make_shared<const Lists>(make()));
    const auto made = all_.front().second;
    bytes_ += bytes_of(*made);
    while (all_.size() > 1 && (all_.size() > kMost || bytes_ > kMostBytes)) {
      bytes_ -= bytes_of(*all_.back().second);
      all_.pop_back();
    }
    return made;
  }

 private:
  static constexpr size_t kMost = 512;
  static constexpr int64_t kMostBytes = int64_t{256} << 20;

  static int64_t bytes_of(const Lists& lists) {
    return static_cast<int64_t>(lists.memory.nbytes());
  }

  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Lists>>> all_;
  int64_t bytes_ = 0;
};

}  // namespace longspan
