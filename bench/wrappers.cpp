// What training costs with a wrapper around attention, and without, timed in turn: less
// by sampled sources (`ssa`), more by a gated recurrent cache (`grc`). Beside the times
// stands the same ratio of counted operations, which is as good as it can get. Of a
// step most is products by the BLAS: `longspan info` tells whether it is a slow one.
// Arguments: the number of threads (2), turns (5).

#include <cstdlib>
#include <functional>
#include <iomanip>
#include <iostream>

#include <torch/torch.h>

#include "longspan/attention/projected.h"
#include "longspan/base/flops.h"
#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/kernels/total.h"
#include "longspan/models/block.h"
#include "longspan/models/language_model.h"
#include "longspan/train/adamw.h"

namespace longspan::bench {
namespace {

using torch::Tensor;

// One way to do something: a forward pass, and what comes after it.
struct Way {
  std::function<Tensor()> forward;
  std::function<void(const Tensor&)> backward;

  void operator()() const { backward(forward()); }

  double flops() const {
    const int64_t before = flops_counted();
    forward();
    return static_cast<double>(flops_counted() - before);
  }
};

// How many times as much `other` takes as `one`.
void compare(const std::string& what, const Way& one, const Way& other, int64_t turns) {
  const double counted = other.flops() / one.flops();
  const Interleaved medians = interleaved(one, other, turns);
  std::cout << std::left << std::setw(70) << what << std::right << std::fixed
            << std::setprecision(0) << std::setw(9) << medians.ours.wall * 1e3
            << std::setw(9) << medians.theirs.wall * 1e3 << std::setprecision(2)
            << std::setw(9) << medians.ratio.wall << std::setw(9) << medians.ratio.cpu
            << std::setw(9) << counted << std::endl;
}

Pass training_pass(bool causal) {
  static uint64_t step = 0;
  Pass pass;
  pass.mask.causal = causal;
  pass.training = pass.sampling = true;
  pass.draw = Draw(/*seed=*/1, step++);
  return pass;
}

Value::Map settings_of(const std::string& text) {
  return *Value::parse(text).as<Value::Map>();
}

constexpr int64_t kTokens = 3072, kWidth = 256;

// Forward and backward of attention by itself.
Way attention(const Mechanism& row, int64_t heads, const Value::Map& settings) {
  const auto random = [=] {
    return torch::randn({1, heads, kTokens, kWidth / heads}).requires_grad_();
  };
  const auto part =
      make<Attention>(row, {.heads = heads, .head_width = kWidth / heads}, settings);
  const Tensor q = random(), k = random(), v = random(), slope = random().detach();
  return {[=] {
            Pass pass = training_pass(/*causal=*/true);
            return part->forward(q, k, v, pass);
          },
          [=](const Tensor& out) {
            torch::autograd::grad({out}, {q, k, v}, {slope});
          }};
}

// A step of training of a language model of bytes, two layers, 256 wide, without
// dropout.
Way training_step(const std::string& mechanism, int64_t heads) {
  constexpr int64_t kIds = 257;
  const auto model = std::make_shared<LanguageModel>(
      TransformerOptions{.layers = 2,
                         .embedding = kWidth,
                         .heads = heads,
                         .attention = Value::parse(mechanism),
                         .dropout = 0},
      kIds, kTokens, LanguageModel::Sees::past);
  const auto optimizer =
      std::make_shared<AdamW>(named_parameters(*model), AdamWOptions());
  const Tensor ids = torch::randint(1, kIds, {1, kTokens}),
               real = torch::ones({1, kTokens}, torch::kBool);
  return {[=] {
            Pass pass = training_pass(/*causal=*/true);
            return total(
                model->judge(model->forward(ids, real, pass), ids.roll(-1, 1)).loss);
          },
          [=](const Tensor& loss) {
            optimizer->clear_gradients();
            loss.backward();
            optimizer->collect_gradients();
            optimizer->step(1e-4);
          }};
}

// Forward and backward of a layer of 512 tokens, 512 wide, 2048 inside, with its cache
// carried on.
Way layer(const Mechanism& row, bool causal) {
  constexpr int64_t kExamples = 8, kLength = 512, kEmbedding = 512;
  const Sizes sizes = Sizes{.embedding = kEmbedding,
                            .heads = 8,
                            .head_width = 64,
                            .inner = 2048,
                            .longest = kLength}
                          .completed();
  const auto block =
      std::make_shared<Block>(make_mixer(row, sizes), sizes, BlockOptions());
  const auto carry = std::make_shared<Record>();
  const bool carries = row.can.carry != Carry::none;
  const Tensor x = torch::randn({kExamples, kLength, kEmbedding}).requires_grad_(),
               slope = torch::randn({kExamples, kLength, kEmbedding});
  std::vector<Tensor> sources = block->parameters();
  sources.push_back(x);
  return {[=] {
            Pass pass = training_pass(causal);
            if (carries) pass.carry = carry.get();
            return block->forward(x, pass);
          },
          [=](const Tensor& y) {
            torch::autograd::grad({y}, sources, {slope}, /*retain_graph=*/{},
                                  /*create_graph=*/false, /*allow_unused=*/true);
          }};
}

void run(int64_t turns) {
  std::cout << std::left << std::setw(70) << "what" << std::right << std::setw(9)
            << "one ms" << std::setw(9) << "other ms" << std::setw(9) << "wall"
            << std::setw(9) << "CPU" << std::setw(9) << "counted" << '\n';
  const Mechanism& dense = catalogue::dense;
  for (const char* settings : {"{windows: 4}", "{windows: 4, kind: unbiased}"}) {
    const std::string named = std::string("{name: ssa, ") + (settings + 1);
    for (const int64_t heads : {4, 8}) {
      const std::string of =
          ", " + std::to_string(heads) + " heads: " + named + ", dense";
      compare("attention" + of, attention(catalogue::ssa, heads, settings_of(settings)),
              attention(dense, heads, {}), turns);
      compare("training step" + of, training_step(named, heads),
              training_step("dense", heads), turns);
    }
  }
  for (const bool causal : {false, true})
    compare(
        std::string("layer, 512 tokens") + (causal ? ", causal" : "") + ": dense, grc",
        layer(dense, causal), layer(catalogue::grc, causal), turns);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  longspan::set_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  longspan::reuse_memory();
  torch::manual_seed(1);
  longspan::bench::run(argc > 2 ? std::atoi(argv[2]) : 5);
}
