// Pathfinder's images drawn in memory, when the first of them is read.

#pragma once

#include <memory>
#include <mutex>

#include "longspan/data/images.h"
#include "longspan/data/pathfinder.h"

namespace longspan {

// Images `first` .. `first + count - 1` of those that a seed gives. The three sets that
// were drawn last stay in memory until the program ends, for those who ask for the same
// again. On a terminal a line tells how far drawing is.
class PathfinderImages final : public Dataset {
 public:
  PathfinderImages(const PathfinderOptions& options, uint64_t seed, int64_t first,
                   int64_t count);

  int64_t size() const override { return count_; }
  int64_t length(int64_t) const override { return options_.size * options_.size; }
  int64_t label(int64_t number) const override;  // draws nothing
  Batch batch(std::span<const int64_t> numbers,
              const BatchOptions& options = {}) const override {
    return images().batch(numbers, options);
  }
  uint32_t fingerprint() const override;  // by a few of them
  void prepare() const override { images(); }

  const Images& images() const;

 private:
  // All that they depend on.
  std::string text() const;

  PathfinderOptions options_;
  uint64_t seed_;
  int64_t first_, count_;
  mutable std::mutex drawing_;
  mutable std::shared_ptr<const Images> images_;
};

}  // namespace longspan
