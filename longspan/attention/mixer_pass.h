// What is read from a pass, by mixers with attentions of their own and others that do
// not go by prepare().

#pragma once

#include <torch/types.h>

#include "longspan/attention/pass.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {

// Where a mixer of x [B, N, E] has its keys from, and which of them are real: the
// context, if there is one, else its own tokens.
inline Stream key_tokens(const torch::Tensor& x, const Pass& pass) {
  if (!pass.crosses()) return {.x = x, .tokens = pass.mask.tokens};
  const auto& [other, tokens, positions] = pass.context;
  require(other.defined(), "the context must come with its x");
  require(other.dim() == 3 && other.size(0) == x.size(0) && other.size(2) == x.size(2),
          "the context must be [B, M, E] = [", x.size(0), ", M, ", x.size(2), "], got ",
          shape(other));
  require(!tokens.defined() || (tokens.scalar_type() == torch::kBool &&
                                tokens.sizes() == other.sizes().slice(0, 2)),
          "context.tokens must be boolean [B, M] = [", other.size(0), ", ",
          other.size(1), "], got ", shape(tokens));
  return {.x = other, .tokens = tokens};
}

// Of attention weights; another key at every call.
inline Dropout dropout_of(Pass& pass) {
  if (!pass.training || pass.dropout == 0) return {};
  return {.probability = pass.dropout, .key = pass.draw.key()};
}

}  // namespace longspan
