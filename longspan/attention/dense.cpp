// Softmax attention over every pair. Vaswani et al. 2017, arXiv:1706.03762; with fewer
// heads of keys than of queries Shazeer 2019, arXiv:1911.02150, and Ainslie et al.
// 2023, arXiv:2305.13245.
//
// What every other mechanism is compared with.

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"

namespace longspan {
namespace {

using torch::Tensor;

class Dense final : public Attention {
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    prepared.source.layout =
        Layout(prepared.query_count(), prepared.key_count(), prepared.order);
    return block_attention(prepared.queries, {prepared.source}, prepared.options).out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    return masked_attention(
        q, k, v, allowed_pairs(pass, q.size(2), k.size(2), q.device()), pass);
  }
};

}  // namespace

constinit const Mechanism catalogue::dense{
    .name = "dense",
    .summary = "softmax over every pair of positions",
    .paper = "Vaswani et al. 2017, arXiv:1706.03762",
    .classes = "full attention",
    .time = {"N*M*d", 2},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .causal_cross = true,
            .decoding = true,
            .positions = true,
            .bias = true,
            .segments = true,
            .dropout = true,
            .grouped = true},
    .state = "keys and values of all tokens: N*Hk*(d + dv)",
    .state_size =
        [](const Settings&, const Sizes& sizes, int64_t tokens) {
          return tokens * sizes.key_heads * (sizes.head_width + sizes.value_width);
        },
    .full = true,
    .make = Mechanism::Make<Attention>(
        [](const Settings&, const Sizes&, const std::shared_ptr<Shared>&)
            -> std::shared_ptr<Attention> { return std::make_shared<Dense>(); }),
};

}  // namespace longspan
