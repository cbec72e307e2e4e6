// How much arithmetic a forward pass is: a multiplication and an addition are two
// operations; norms, activations, softmax and lookups are left out, as is usual.

#pragma once

#include <cstdint>

namespace longspan {

// The operations that primitives of the calling thread reported so far.
int64_t flops_counted();

// A primitive reports its operations by one of these, alive while it works: what it
// calls meanwhile is not counted again.
class Flops {
 public:
  explicit Flops(int64_t flops);
  ~Flops();
  Flops(const Flops&) = delete;
  Flops& operator=(const Flops&) = delete;
};

}  // namespace longspan
