// Labelled sequences in memory, and batches of them.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

namespace longspan {

// Many short sequences in few allocations.
class Examples {
 public:
  // As much of `ids` as `longest` allows; 0: all.
  void add(std::span<const int32_t> ids, int64_t label, int64_t longest = 0);

  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  std::span<const int32_t> ids(int64_t example) const;
  int64_t length(int64_t example) const {
    return starts_[example + 1] - starts_[example];
  }
  int64_t label(int64_t example) const { return labels_[example]; }
  int64_t longest() const;
  int64_t cut() const { return cut_; }  // how many were longer than allowed

  // Another number for other ids, labels or order.
  uint32_t fingerprint() const;

 private:
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_ = {0};
  std::vector<int64_t> labels_;
  int64_t cut_ = 0;
};

struct Batch {
  torch::Tensor ids = {};     // [B, N] int64, 0 at padding
  torch::Tensor tokens = {};  // [B, N] bool, false at padding
  torch::Tensor labels = {};  // [B] int64
  int64_t real_tokens = 0;

  int64_t examples() const { return ids.size(0); }
  // A copy to CUDA does not wait for what the device still does.
  Batch to(torch::Device device) const;
};

// The examples with these numbers, padded to the longest of them or to `tokens`. An
// example without tokens is one token of padding, so that there is something to see.
// The batch is on the CPU; where it is meant for CUDA, in pinned memory, from which it
// is copied while the device works.
Batch make_batch(const Examples& examples, std::span<const int64_t> numbers,
                 torch::Device meant_for = torch::kCPU, int64_t tokens = 1);

}  // namespace longspan
