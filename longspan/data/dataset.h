// Sequences to learn from, and batches of them.

#pragma once

#include <cstdint>
#include <span>

#include <torch/types.h>

#include "longspan/base/random.h"

namespace longspan {

// What a model should say about a sequence is one label, or a target at each of its
// tokens.
struct Batch {
  // [B, N] int64, 0 at padding. Of pairs of texts [2 B, N]: all first ones, then all
  // second ones.
  torch::Tensor ids = {};
  torch::Tensor tokens = {};   // [B, N] bool, false at padding
  torch::Tensor labels = {};   // [B] int64, or undefined
  torch::Tensor targets = {};  // [B, N] int64, -1 where nothing is asked; or undefined
  // [B, N] int64: tokens see their own segment only (packed documents); or undefined
  torch::Tensor segments = {};
  torch::Tensor kinds =
      {};  // [B, N] int64: first or second text of a pair; or undefined
  int64_t real_tokens = 0;
  int64_t answers = 0;  // labels, or targets that are asked

  // `tokens`; undefined where all are real, so that nobody looks for padding.
  torch::Tensor padding_mask() const {
    return real_tokens == ids.numel() ? torch::Tensor() : tokens;
  }
  int64_t examples() const { return labels.defined() ? labels.size(0) : ids.size(0); }
  // A copy to CUDA does not wait for what the device still does.
  Batch to(torch::Device device) const;
};

struct BatchOptions {
  // The batch is on the CPU; where it is meant for CUDA, in pinned memory, from which
  // it is copied while the device works.
  torch::Device meant_for = torch::kCPU;
  int64_t tokens = 1;  // at least so many, by padding
  Key key = {};        // of what is drawn anew for every batch
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;  // in examples
  virtual int64_t length(int64_t example) const = 0;
  virtual int64_t label(int64_t) const { return -1; }  // where examples have one
  // The examples with these numbers, padded to the longest of them; -1 is one without
  // tokens.
  virtual Batch batch(std::span<const int64_t> numbers,
                      const BatchOptions& options = {}) const = 0;
  // Another number for other examples or another order of them.
  virtual uint32_t fingerprint() const = 0;

  // What takes long before the first batch is done now.
  virtual void prepare() const {}

  int64_t longest() const;
  virtual int64_t cut() const { return 0; }  // how many were longer than allowed
};

}  // namespace longspan
