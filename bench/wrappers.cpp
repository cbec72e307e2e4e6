// What training costs with a wrapper around attention, and without, timed in turn: less
// by sampled sources (`ssa`), more by a gated recurrent cache (`grc`). Beside the times
// stands the same ratio of counted operations, which is as good as it can get.
// Arguments: the number of threads (2), turns (5).

#include <cstdlib>
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

template <class Work>
double flops_of(const Work& work) {
  const int64_t before = flops_counted();
  work();
  return static_cast<double>(flops_counted() - before);
}

// How many times as much `other` takes as `one`.
void compare(const std::string& what, const std::function<void()>& one,
             const std::function<void()>& other, int64_t turns) {
  const double counted = flops_of(other) / flops_of(one);
  const Interleaved medians = interleaved(one, other, turns);
  std::cout << std::left << std::setw(58) << what << std::right << std::fixed
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

constexpr int64_t kTokens = 3072, kHeads = 4, kHeadWidth = 64;

// Forward and backward of attention by itself.
std::function<void()> attention(const Mechanism& row, const Value::Map& settings) {
  const auto random = [] {
    return torch::randn({1, kHeads, kTokens, kHeadWidth}).requires_grad_();
  };
  const auto part =
      make<Attention>(row, {.heads = kHeads, .head_width = kHeadWidth}, settings);
  return [=, q = random(), k = random(), v = random(),
          slope = random().detach()]() mutable {
    Pass pass = training_pass(/*causal=*/true);
    torch::autograd::grad({part->forward(q, k, v, pass)}, {q, k, v}, {slope});
  };
}

// A step of training of a language model of bytes, two layers, 256 wide.
std::function<void()> training_step(const std::string& mechanism) {
  constexpr int64_t kIds = 257;
  const auto model = std::make_shared<LanguageModel>(
      TransformerOptions{.layers = 2,
                         .embedding = kHeads * kHeadWidth,
                         .heads = kHeads,
                         .attention = Value::parse(mechanism)},
      kIds, kTokens, LanguageModel::Sees::past);
  const auto optimizer =
      std::make_shared<AdamW>(named_parameters(*model), AdamWOptions());
  const Tensor ids = torch::randint(1, kIds, {1, kTokens}),
               real = torch::ones({1, kTokens}, torch::kBool);
  return [=] {
    optimizer->clear_gradients();
    Pass pass = training_pass(/*causal=*/true);
    total(model->judge(model->forward(ids, real, pass), ids.roll(-1, 1)).loss)
        .backward();
    optimizer->collect_gradients();
    optimizer->step(1e-4);
  };
}

// Forward and backward of a layer of 512 tokens, 512 wide, 2048 inside, with its cache
// carried on.
std::function<void()> layer(const Mechanism& row, bool causal) {
  constexpr int64_t kExamples = 8, kLength = 512, kWidth = 512;
  const Sizes sizes = Sizes{.embedding = kWidth,
                            .heads = 8,
                            .head_width = 64,
                            .inner = 2048,
                            .longest = kLength}
                          .completed();
  const auto block =
      std::make_shared<Block>(make_mixer(row, sizes), sizes, BlockOptions());
  const auto carry = std::make_shared<Record>();
  const bool carries = row.can.carry != Carry::none;
  const Tensor x = torch::randn({kExamples, kLength, kWidth}).requires_grad_(),
               slope = torch::randn({kExamples, kLength, kWidth});
  return [=] {
    Pass pass = training_pass(causal);
    if (carries) pass.carry = carry.get();
    block->forward(x, pass).backward(slope);
    x.mutable_grad() = {};
    for (Tensor& parameter : block->parameters()) parameter.mutable_grad() = {};
  };
}

void run(int64_t turns) {
  std::cout << std::left << std::setw(58) << "what" << std::right << std::setw(9)
            << "one ms" << std::setw(9) << "other ms" << std::setw(9) << "wall"
            << std::setw(9) << "CPU" << std::setw(9) << "counted" << '\n';
  const Mechanism& dense = catalogue::dense;
  for (const char* settings : {"{windows: 4}", "{windows: 4, kind: unbiased}"}) {
    const std::string named = std::string("{name: ssa, ") + (settings + 1);
    compare("attention, 3072 tokens: " + named + ", dense",
            attention(catalogue::ssa, settings_of(settings)), attention(dense, {}),
            turns);
    compare("training step, 256 wide: " + named + ", dense", training_step(named),
            training_step("dense"), turns);
  }
  for (const bool causal : {false, true})
    compare(std::string("layer, 512 tokens, 512 wide") + (causal ? ", causal" : "") +
                ": dense, grc",
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
