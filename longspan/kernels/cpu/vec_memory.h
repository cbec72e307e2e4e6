// Memory that kernels work in, carved up by themselves; see vec.h for who may include
// this.

#pragma once

#include <cstdint>

#include "longspan/kernels/cpu/padding.h"

namespace longspan::cpu::LONGSPAN_ISA {
namespace {

constexpr int64_t parts_of(int64_t count, int64_t part) {
  return (count + part - 1) / part;
}

constexpr int64_t padded(int64_t width) { return parts_of(width, kPadding) * kPadding; }

// Hands out parts of a block of memory, or only counts its bytes.
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kLine = 64;
    char* const part = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ += parts_of(count * static_cast<int64_t>(sizeof(T)), kLine) * kLine;
    return reinterpret_cast<T*>(part);
  }

  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace
}  // namespace longspan::cpu::LONGSPAN_ISA
