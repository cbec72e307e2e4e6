// Layer norm, dropout, full sums, matrix products and reused memory against LibTorch's
// own. Prints a row a shape; takes the number of threads (2).

#include <cstdlib>
#include <sstream>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "bench/ratio.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/kernels/activation.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan::bench {
namespace {

using torch::Tensor;

void layer_norms() {
  for (const int64_t width : {64, 512, 2048}) {
    const int64_t rows = (1 << 22) / width;
    const auto label =
        "layer norm, " + std::to_string(rows) + " x " + std::to_string(width);
    const Tensor x = torch::randn({rows, width}), weight = torch::rand(width),
                 bias = torch::rand(width), slope = torch::randn({rows, width});
    {
      const torch::NoGradGuard forward_only;
      compare(
          label + ", forward", [&] { layer_norm(x, weight, bias); },
          [&] { torch::layer_norm(x, width, weight, bias); });
    }
    const auto learned = [](const Tensor& tensor) {
      return tensor.detach().clone().requires_grad_();
    };
    const Tensor lx = learned(x), lw = learned(weight), lb = learned(bias);
    compare(
        label + ", forward and backward",
        [&] {
          torch::autograd::grad({layer_norm(lx, lw, lb)}, {lx, lw, lb}, {slope});
        },
        [&] {
          torch::autograd::grad({torch::layer_norm(lx, width, lw, lb)}, {lx, lw, lb},
                                {slope});
        });
  }
}

void dropouts_and_sums() {
  const Tensor x = torch::randn({1 << 22});
  compare(
      "dropout, 4194304", [&] { dropout(x, 0.1, Key{1}); },
      [&] { torch::dropout(x, 0.1, /*train=*/true); });
  compare(
      "full sum, 4194304", [&] { total(x); }, [&] { x.sum(); });
}

void matrix_products() {
  const struct {
    int64_t products, m, k, n;
  } shapes[] = {{1, 4096, 512, 512}, {1, 512, 4096, 512},  {1, 2048, 2048, 2048},
                {1, 64, 8192, 64},   {16, 1024, 64, 1024}, {1, 1, 512, 2048}};
  for (const auto& [products, m, k, n] : shapes) {
    const Tensor a = torch::randn({products, m, k}), b = torch::randn({products, k, n});
    std::ostringstream label;
    label << "matmul, " << products << " x " << m << " x " << k << " x " << n;
    compare(
        label.str(), [&] { longspan::matmul(a, b); }, [&] { torch::matmul(a, b); });
  }
}

void activations() {
  const std::pair<Activation, const char*> kinds[] = {
      {Activation::gelu, "gelu"}, {Activation::gelu_tanh, "gelu_tanh"}};
  for (const auto& [kind, name] : kinds) {
    const Tensor x = torch::randn({8192, 1024}).requires_grad_(),
                 bias = torch::randn(1024).requires_grad_();
    const auto theirs = [&, kind = kind] { return activate_reference(x, bias, kind); };
    const auto ours = [&, kind = kind] { return activate(x, bias, kind); };
    const std::string label = std::string(name) + " with bias, 8192 x 1024";
    compare(label, ours, theirs);
    compare(
        label + ", with backward", [&] { ours().sum().backward(); },
        [&] { theirs().sum().backward(); });
  }
}

// A chain of temporaries, as a layer makes them, with each allocator.
void memory() {
  reuse_memory();
  for (const int64_t tokens : {512, 2048}) {
    const Tensor q = torch::randn({8, tokens, 64}), k = torch::randn({8, 64, tokens}),
                 v = torch::randn({8, tokens, 64});
    const auto attention = [&] { q.matmul(k).softmax(-1).matmul(v); };
    compare("bmm, softmax, bmm, 8 heads of " + std::to_string(tokens) + " tokens",
            attention, [&] {
              const ShippedAllocator shipped;
              attention();
            });
  }
}

}  // namespace
}  // namespace longspan::bench

int main(int count, char** words) {
  using namespace longspan;
  set_threads(count > 1 ? std::atoi(words[1]) : 2);
  std::cout << at::get_num_threads() << " threads\n";
  bench::print_header();
  bench::memory();
  bench::matrix_products();
  bench::layer_norms();
  bench::activations();
  bench::dropouts_and_sums();
}
