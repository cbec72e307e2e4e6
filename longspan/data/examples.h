// Labelled sequences in memory.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "longspan/data/dataset.h"

namespace longspan {

// Many short sequences in few allocations.
class Examples final : public Dataset {
 public:
  // As much of `ids` as `longest` allows; 0: all.
  void add(std::span<const int32_t> ids, int64_t label, int64_t longest = 0);

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  std::span<const int32_t> ids(int64_t example) const;
  int64_t length(int64_t example) const override {
    return starts_[example + 1] - starts_[example];
  }
  int64_t label(int64_t example) const override { return labels_[example]; }
  int64_t cut() const override { return cut_; }

  // An example without tokens is one token of padding, so that there is something to
  // see.
  Batch batch(std::span<const int64_t> numbers,
              const BatchOptions& options = {}) const override;
  uint32_t fingerprint() const override;

 private:
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_ = {0};
  std::vector<int64_t> labels_;
  int64_t cut_ = 0;
};

}  // namespace longspan
