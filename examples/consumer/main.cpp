// Dense attention in a program of one's own: as a function of heads, as a layer, and
// one token at a time. Prints three shapes and how far the two ways are apart.

#include <iostream>

#include <torch/torch.h>

#include <longspan/attention/mechanism.h>
#include <longspan/attention/projected.h>

int main() {
  torch::manual_seed(0);
  const longspan::Mechanism& dense = longspan::find_mechanism("dense");
  const longspan::Sizes sizes{.embedding = 64, .heads = 4, .head_width = 16};

  // Queries, keys and values by heads, [B, H, N, d].
  const auto attention = longspan::make<longspan::Attention>(dense, sizes);
  const auto q = torch::randn({2, 4, 10, 16}), k = torch::randn({2, 4, 10, 16}),
             v = torch::randn({2, 4, 10, 16});
  longspan::Pass plain;
  std::cout << "dense attention: " << attention->forward(q, k, v, plain).sizes()
            << '\n';

  // A layer with projections, [B, N, E], causal and with padding.
  const auto layer = longspan::make_mixer(dense, sizes);
  const auto x = torch::randn({2, 10, 64});
  longspan::Pass causal;
  causal.mask.causal = true;
  causal.mask.tokens = torch::arange(10).lt(torch::tensor({{10}, {7}}));
  const auto whole = layer->forward(x, causal);
  std::cout << "layer: " << whole.sizes() << '\n';

  // The same tokens one after the other.
  longspan::Record state;
  std::vector<torch::Tensor> steps;
  for (int64_t i = 0; i < 10; ++i) {
    longspan::Pass step;
    step.mask.causal = true;
    step.mask.tokens = causal.mask.tokens.slice(1, i, i + 1);
    step.state = &state;
    steps.push_back(layer->forward(x.slice(1, i, i + 1), step));
  }
  const auto difference = (torch::cat(steps, 1) - whole).abs().max().item<float>();
  std::cout << "steps: " << torch::cat(steps, 1).sizes() << ", " << state.tokens
            << " tokens kept, off by " << difference << '\n';
  return difference < 1e-5 ? 0 : 1;
}
