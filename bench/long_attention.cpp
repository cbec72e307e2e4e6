// Attention over 131,072 tokens with a window: its time, and its memory beside q, k, v,
// out and their gradients. The argument is the number of threads.

#include <cstdlib>
#include <iostream>

#include <torch/torch.h>

#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/kernels/block_attention.h"

int main(int argc, char** argv) {
  using namespace longspan;
  constexpr int64_t kTokens = 131072, kHeads = 8, kWidth = 64, kWindow = 512;
  set_threads(argc > 1 ? std::atoi(argv[1]) : usable_cores());
  reuse_memory();
  torch::manual_seed(1);
  const auto random = [&] { return torch::randn({1, kHeads, kTokens, kWidth}); };
  const auto q = random().requires_grad_(), k = random().requires_grad_(),
             v = random().requires_grad_(), slope = random();
  const Layout layout(kTokens, kTokens, window_of_keys(kWindow, kWindow));

  const PeakBytes peak(torch::kCPU);
  torch::Tensor out;
  std::vector<torch::Tensor> gradients;
  const Spent forward = spent_on([&] {
    out = block_attention({.q = q}, {{.k = k, .v = v, .layout = layout}}).out;
  });
  const Spent backward = spent_on([&] {
    gradients = torch::autograd::grad({out}, {q, k, v}, {slope});
  });
  const double results = 4.0 * 4 * static_cast<double>(out.numel());
  std::cout << "forward " << forward.wall << " s, backward " << backward.wall << " s, "
            << (static_cast<double>(peak.newly()) - results) / 1e6
            << " MB beside the eight tensors\n";
}
