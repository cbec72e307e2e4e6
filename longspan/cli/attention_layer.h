// A mechanism with random input, to be run again and again.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"
#include "longspan/base/interleaved.h"

namespace longspan::cli {

struct AttentionSetup {
  int64_t batch = 1, heads = 8, head_width = 64;
  int64_t global =
      0;  // first tokens that see and are seen by all, where there are such
  bool causal = false;
  bool backward = false;  // forward and backward, else forward alone
  torch::Device device = torch::kCPU;
  torch::Dtype type = torch::kFloat;
};

// Why a mechanism cannot be measured so at all; "" if it can.
std::string refusal(const Mechanism& mechanism, const AttentionSetup& setup);

// What is run: an Attention on heads; a Mixer, or an Attention between its projections,
// on tokens; a Stack, or dense attention in as many blocks as one runs.
enum class Form { heads, tokens, blocks };

class AttentionLayer {
 public:
  // `setup` must outlive it. Runs it, so that what it keeps for later passes is there.
  // `blocks`: how many, of dense attention as Form::blocks.
  AttentionLayer(const Mechanism& mechanism, const Value::Map& settings, Form form,
                 int64_t length, const AttentionSetup& setup, int64_t blocks = 0);

  // As many passes as take a time that can be measured.
  void turn();
  int passes() const { return passes_; }
  Spent of_one_pass(const Spent& turn) const {
    return {turn.wall / passes_, turn.cpu / passes_};
  }

  // Most bytes of tensors at once in a pass, less those of the input.
  int64_t peak_bytes() const { return peak_bytes_; }
  double forward_flops() const { return flops_; }
  int64_t blocks() const { return blocks_; }  // that a pass goes through
  torch::Device device() const { return setup_.device; }

 private:
  void make_heads(const Value::Map& settings, const Sizes& sizes);
  void make_tokens(const Value::Map& settings, const Sizes& sizes, Form form,
                   int64_t blocks);
  torch::Tensor input(at::IntArrayRef shape);
  Pass new_pass(Record& carry) const;
  void backward(const torch::Tensor& out, const Pass& pass);
  void run();

  const AttentionSetup& setup_;
  const Mechanism& mechanism_;
  std::shared_ptr<torch::nn::Module> module_;
  std::function<torch::Tensor(Pass&)> forward_;
  torch::Tensor tokens_;  // one of the inputs
  torch::Tensor side_;
  std::vector<torch::Tensor> sources_;    // inputs and parameters that have gradients
  std::vector<torch::Tensor> gradients_;  // of the outputs
  Record carried_;                        // from an earlier pass
  double flops_ = 0;
  int64_t peak_bytes_ = 0, blocks_ = 0;
  int passes_ = 1;
};

}  // namespace longspan::cli
