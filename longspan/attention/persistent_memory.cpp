// Keys and values that are learned, beside those of the tokens and in one softmax with
// them, in place of the feed-forward. Sukhbaatar et al. 2019, arXiv:1907.01470.

#include <algorithm>
#include <cmath>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"

namespace longspan {
namespace {

using torch::Tensor;

class PersistentMemory final : public Attention {
 public:
  PersistentMemory(const Settings& settings, const Sizes& sizes)
      : key_scale_(std::sqrt(static_cast<double>(sizes.head_width))),
        value_scale_(std::sqrt(static_cast<double>(settings.integer("memory")))) {
    const auto learned = [&](const char* name, int64_t width, double scale) {
      return register_parameter(
          name, torch::randn({sizes.heads, settings.integer("memory"), width}) / scale);
    };
    memory_k_ = learned("memory_k", sizes.head_width, key_scale_);
    memory_v_ = learned("memory_v", sizes.value_width, value_scale_);
  }

  Sight sight(int64_t tokens, bool causal) override {
    constexpr int64_t kMostShown = 8;
    const int64_t memory = std::min(memory_k_.size(1), kMostShown);
    const Tensor all = torch::ones({tokens, memory + tokens}, torch::kByte);
    return {.pairs = (causal ? all.tril(memory) : all).unsqueeze(0),
            .memory_columns = memory};
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    prepared.source.layout =
        Layout(prepared.query_count(), prepared.key_count(), prepared.order);
    const Source memory{.k = (key_scale_ * memory_k_).unsqueeze(0),
                        .v = (value_scale_ * memory_v_).unsqueeze(0)};
    return block_attention(prepared.queries, {prepared.source, memory},
                           prepared.options)
        .out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t examples = q.size(0), tokens = q.size(2), memory = memory_k_.size(1);
    const auto with_memory = [&](const Tensor& x, const Tensor& more, double scale) {
      return torch::cat({x.repeat_interleave(q.size(1) / x.size(1), 1),
                         (scale * more).expand({examples, -1, -1, -1})},
                        2);
    };
    Pass joint;
    if (pass.bias.defined()) {
      Tensor at = pass.positions.defined() ? pass.positions : torch::arange(tokens);
      if (at.dim() == 2) at = at.unsqueeze(1);
      joint.bias.dense = torch::constant_pad_nd(
          bias_scores(pass.bias, q, 1 / key_scale_, at, at), {0, memory});
    }
    const Tensor seen = allowed_pairs(pass, tokens, tokens, q.device());
    return masked_attention(q, with_memory(k, memory_k_, key_scale_),
                            with_memory(v, memory_v_, value_scale_),
                            torch::constant_pad_nd(seen, {0, memory}, true), joint);
  }

  // What the parameters are used times, so that they learn at the pace of the others.
  double key_scale_, value_scale_;
  Tensor memory_k_, memory_v_;  // [H, P, w]
};

constexpr Setting kSettings[] = {
    {.name = "memory",
     .standard = "1024",
     .help = "learned keys and values of every head, P",
     .least = 1},
};

}  // namespace

constinit const Mechanism catalogue::persistent_memory{
    .name = "persistent_memory",
    .summary = "learned keys and values beside those of the tokens",
    .paper = "Sukhbaatar et al. 2019, arXiv:1907.01470",
    .classes = "memory",
    .time = {"N*(N + memory)*d", 2},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .positions = true,
            .bias = true,
            .dropout = true,
            .grouped = true},
    .state = "keys and values of all tokens: N*Hk*(d + dv)",
    .state_size =
        [](const Settings&, const Sizes& sizes, int64_t tokens) {
          return tokens * sizes.key_heads * (sizes.head_width + sizes.value_width);
        },
    .keeps = {.feed_forward = false},
    .full = true,
    .settings = kSettings,
    .test_settings = "{memory: 100}",
    .make = made_as<Attention, PersistentMemory>(),
};

}  // namespace longspan
