// Which tokens a classifier looks at.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/models/classifier.h"

namespace longspan {

// Of one sequence of N tokens. Where the classifier reads the token in front, shares
// are of what that token is given; where it reads the mean of all, of what they are
// given in the mean. A weight may be below 0 where a mechanism has such.
struct TokenWeights {
  struct Layer {
    int64_t layer = 0;
    std::string mechanism = {};
    torch::Tensor heads = {};  // [H, N] double
    torch::Tensor front = {};  // [H] double: the share of the tokens in front
    torch::Tensor memory =
        {};  // [H] double: that of a memory, no token's; or undefined
  };

  std::vector<double> probabilities = {};
  std::vector<Layer> layers = {};
  // [N] double: through all layers, of which each passes half of a token on and mixes
  // half by the mean of its heads (Abnar & Zuidema 2020, arXiv:2005.00928); of one
  // layer the mean of its heads alone.
  torch::Tensor through = {};
  double front = 0, memory = 0;  // the shares of the others in that
};

// texts: ids [N] integer of one, or of the two of a pair; one answer for each, with the
// same probabilities. `options` are those of the model. Takes memory that grows like N,
// but for what mechanisms take themselves. `carry` is what the model keeps, if that is
// of the model. An Error where a layer has no weights from token to token.
std::vector<TokenWeights> token_weights(Classifier& model,
                                        const TransformerOptions& options,
                                        const std::vector<torch::Tensor>& texts,
                                        const Record& carry = {});

}  // namespace longspan
