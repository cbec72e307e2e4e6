// The order in which examples are trained on: a function of the seed and of how many
// came before, so that a run can go on from any place.

#pragma once

#include <cstdint>
#include <vector>

#include "longspan/base/random.h"

namespace longspan {

struct OrderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;  // examples that will be trained on together
  // So many batches are sorted by length together, and the order of batches drawn
  // again: less padding. 0 or 1: no sorting.
  int64_t bucket = 0;
  // Not 0: the examples stand in so many streams of equal length, one after the other,
  // and a step has the next of each. What does not fill a stream is left out.
  int64_t streams = 0;
};

// An endless stream of numbers of examples: every epoch has each of them once, drawn in
// another order or as streams.
class Order {
 public:
  Order(std::vector<int64_t> lengths, const OrderOptions& options);

  // Numbers `first` .. `first + count - 1` of the stream.
  std::vector<int64_t> numbers(int64_t first, int64_t count);

  // Whether all streams begin at number `first`.
  bool begins(int64_t first) const;

 private:
  void shuffle(int64_t epoch);
  int64_t stream_length() const;

  std::vector<int64_t> lengths_, order_;
  OrderOptions options_;
  int64_t epoch_ = -1;  // of which order_ is
};

// A random order of 0 .. count - 1.
std::vector<int64_t> permutation(int64_t count, Key key);

}  // namespace longspan
