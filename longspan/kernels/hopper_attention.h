// block_attention() on the kernels for Hopper, without autograd; only in builds for
// CUDA. See docs/kernels.md.

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "longspan/kernels/attention_call.h"

namespace longspan {

// A call as those kernels take it.
class HopperCall {
 public:
  // Nothing where the device or the call asks for other kernels.
  static std::optional<HopperCall> of(const AttentionCall& call,
                                      const AttentionSizes& sizes);

  Attended attend() const;

  // Of q, k and v. Slopes that are undefined are 0.
  std::vector<torch::Tensor> gradient(const Attended& results,
                                      const Attended& slopes) const;

 private:
  struct Views;
  explicit HopperCall(std::shared_ptr<const Views> views) : views_(std::move(views)) {}

  std::shared_ptr<const Views> views_;
};

}  // namespace longspan
