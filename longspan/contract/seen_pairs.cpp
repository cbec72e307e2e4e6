#include "longspan/contract/seen_pairs.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

namespace longspan {

using torch::Tensor;

SeenPairs seen_pairs(const Subject& subject, int64_t tokens, bool causal) {
  Tensors inputs = subject.inputs(1, tokens);
  Pass pass;
  pass.mask.causal = causal;
  auto& source = inputs.back();
  source.requires_grad_();
  const Subject::Output output = subject.run(inputs, pass);
  const Tensor rows = output.x.dim() == 4 ? output.x[0] : output.x;  // [H|1, n, ..]
  const Tensor pairs = torch::zeros({rows.size(0), rows.size(1), tokens}, torch::kBool);
  for (int64_t head = 0; head < rows.size(0); ++head) {
    for (int64_t i = 0; i < rows.size(1); ++i) {
      const auto gradient = torch::autograd::grad({rows[head][i].sum()}, {source}, {},
                                                  /*retain_graph=*/true)[0];
      pairs[head][i].copy_((gradient != 0).any(-1).flatten(0, -2).any(0));
    }
  }
  return {pairs, output.tokens};
}

}  // namespace longspan
