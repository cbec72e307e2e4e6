#include "longspan/data/order.h"

#include <algorithm>
#include <numeric>

#include "longspan/base/error.h"

namespace longspan {

std::vector<int64_t> permutation(int64_t count, Key key) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t left = count; left > 1; --left) {
    const auto words = philox(
        key, {static_cast<uint32_t>(left), static_cast<uint32_t>(left >> 32), 0, 0});
    const uint64_t word = uint64_t{words[0]} << 32 | words[1];
    // Off from even by 2^-64 times the count.
    const auto chosen = static_cast<int64_t>(
        static_cast<unsigned __int128>(word) * static_cast<uint64_t>(left) >> 64);
    std::swap(order[static_cast<size_t>(left - 1)], order[static_cast<size_t>(chosen)]);
  }
  return order;
}

Order::Order(std::vector<int64_t> lengths, const OrderOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
  require(!lengths_.empty(), "there are no examples to train on");
  require(options.streams <= static_cast<int64_t>(lengths_.size()), "there are ",
          lengths_.size(), " examples, too few for ", options.streams, " streams");
}

void Order::shuffle(int64_t epoch) {
  const Key key = mix(Key{options_.seed}, static_cast<uint64_t>(epoch));
  const auto count = static_cast<int64_t>(lengths_.size());
  order_ = permutation(count, key);
  epoch_ = epoch;
  if (options_.bucket <= 1) return;
  // The first complete the last batch of the epoch before.
  const int64_t batch = options_.batch, window = batch * options_.bucket;
  const int64_t first = std::min(count, (batch - epoch * count % batch) % batch);
  const int64_t whole = (count - first) / batch;
  const auto begin = order_.begin() + first, end = begin + whole * batch;
  std::vector<int64_t> sorted(begin, end);
  for (int64_t at = 0; at < whole * batch; at += window) {
    std::stable_sort(sorted.begin() + at,
                     sorted.begin() + std::min(at + window, whole * batch),
                     [&](int64_t a, int64_t b) { return lengths_[a] < lengths_[b]; });
  }
  auto place = begin;
  for (const int64_t number : permutation(whole, mix(key, 1)))
    place = std::copy_n(sorted.begin() + number * batch, batch, place);
}

bool Order::begins(int64_t first) const {
  return options_.streams > 0 && first % (options_.streams * stream_length()) == 0;
}

int64_t Order::stream_length() const {
  return static_cast<int64_t>(lengths_.size()) / options_.streams;
}

std::vector<int64_t> Order::numbers(int64_t first, int64_t count) {
  std::vector<int64_t> numbers;
  if (options_.streams > 0) {
    for (int64_t at = first; at < first + count; ++at)
      numbers.push_back(at % options_.streams * stream_length() +
                        at / options_.streams % stream_length());
    return numbers;
  }
  const auto epoch_size = static_cast<int64_t>(lengths_.size());
  for (int64_t at = first; at < first + count; ++at) {
    if (at / epoch_size != epoch_) shuffle(at / epoch_size);
    numbers.push_back(order_[static_cast<size_t>(at % epoch_size)]);
  }
  return numbers;
}

}  // namespace longspan
