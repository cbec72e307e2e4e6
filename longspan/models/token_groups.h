// Tokens in groups that become one token each, and come back.

#pragma once

#include <cstdint>

#include <torch/types.h>

#include "longspan/attention/pass.h"

namespace longspan {

// Groups of `size` tokens, one after the other. With `separate_first` the first token
// is a group by itself. A group without a real member is padding.
//
// Causal groups end where the others would begin: group g has the tokens from
// g*size - (size - 1) to g*size, zeros before the first token, and comes back as the
// tokens g*size to g*size + size - 1. There the first token is one like the others.
class TokenGroups {
 public:
  TokenGroups(int64_t size, bool separate_first)
      : size_(size), separate_first_(separate_first) {}

  // The means of the real members of every group; causal, of every group that ends in
  // h. `state`: the tokens before h were given earlier, of which it keeps size - 1.
  Stream pooled(const Stream& h, bool causal, Record* state = nullptr) const;

  // x [B, G, E] of the groups of `count` tokens: [B, count, E]. In decoding, after
  // pooled(); `state` keeps the last group.
  torch::Tensor repeated(const torch::Tensor& x, int64_t count, bool causal,
                         Record* state = nullptr) const;

  // How many numbers a state has of an example.
  static int64_t numbers_kept(int64_t size, int64_t embedding) {
    return (size - 1) * (embedding + 1) + embedding;
  }

 private:
  Stream pooled_past(const Stream& h, Record* state) const;

  int64_t size_;
  bool separate_first_;
};

}  // namespace longspan
