#include "longspan/models/token_weights.h"

#include <algorithm>

#include "longspan/attention/attention_watch.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;
using Seen = AttentionWatch::Seen;

// What was seen in each layer; a layer may mix by several attentions.
using ByLayer = std::vector<std::vector<Seen>>;

void check_layers(const ByLayer& layers, int64_t tokens) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    require(!layers[layer].empty(), "layer ", layer,
            " mixes tokens otherwise than by an attention between projections, so it ",
            "has no weights that could be shown");
    for (const Seen& seen : layers[layer])
      require(seen.out.size(2) == tokens && seen.v.size(2) == tokens, "layer ", layer,
              ", ", seen.attention.mechanism().name, ", goes from ", seen.v.size(2),
              " to ", seen.out.size(2), " tokens in place of the ", tokens,
              " of the model, so its weights are not of tokens");
  }
}

}  // namespace

TokenWeights token_weights(Classifier& model, const TransformerOptions& options,
                           const Tensor& ids, const Record& carry) {
  require(ids.dim() == 1 && ids.size(0) > 0,
          "weights of tokens need ids [N] of 1 or more, got ", shape(ids));
  require(options.pooling != "pma",
          "model.pooling: pma reads by an attention of its own, whose weights are not ",
          "shown; the others are cls and mean");
  const bool reads_front = options.pooling == "cls";
  const int64_t layer_count = options.layers;
  const torch::NoGradGuard without_gradients;
  ByLayer layers(static_cast<size_t>(layer_count));
  TokenWeights weights;
  Tensor logits;
  {
    const int64_t before = blocks_run();
    const AttentionWatch watch([&](const Seen& seen) {
      const int64_t layer = blocks_run() - before - 1;
      require(layer >= 0 && layer < layer_count, seen.attention.mechanism().name,
              ": is in a layer with layers of its own, or in a reversible one, whose ",
              "weights are not shown");
      layers[static_cast<size_t>(layer)].push_back(seen);
    });
    Pass pass;
    Record kept = carry;
    if (is_of_model(model.carry())) pass.carry = &kept;
    std::vector<Tensor> ids, real;
    for (const Tensor& text : texts) {
      ids.push_back(torch::constant_pad_nd(text, {0, tokens - text.size(0)}));
      real.push_back(torch::arange(tokens, text.device()) < text.size(0));
    }
    logits = model.forward(torch::stack(ids), torch::stack(real), pass);
  }
  const int64_t count = ids.size(0),
                front = std::max(options.global_tokens, int64_t{reads_front});
  check_layers(layers, count + front);

  const Tensor shares = torch::softmax(logits[0], 0).to(torch::kDouble).cpu();
  weights.probabilities.assign(shares.data_ptr<double>(),
                               shares.data_ptr<double>() + shares.numel());
  // What the classifier reads, as shares of the tokens.
  Tensor read =
      torch::zeros({1, count + front}, logits.options().dtype(torch::kDouble));
  if (reads_front)
    read[0][0] = 1;
  else
    read.slice(1, front).fill_(1 / static_cast<double>(count));

  const auto of_tokens = [&](const Tensor& all) { return all.slice(-1, front).cpu(); };
  const auto in_front = [&](const Tensor& all) {
    return all.slice(-1, 0, front).sum(-1).cpu();
  };
  const auto heads_of = [&](const std::vector<Seen>& layer, const Tensor& rows) {
    std::vector<Tensor> heads;
    for (const Seen& seen : layer)
      heads.push_back(
          key_shares(seen, rows.to(seen.v.scalar_type()))[0].to(torch::kDouble));
    return torch::cat(heads, 0);  // [H, front + N]
  };
  for (int64_t layer = 0; layer < layer_count; ++layer) {
    const auto& seen = layers[static_cast<size_t>(layer)];
    const Tensor heads = heads_of(seen, read);
    weights.layers.push_back(
        {.layer = layer,
         .mechanism = std::string(seen.front().attention.mechanism().name),
         .heads = of_tokens(heads),
         .front = in_front(heads)});
    if (layer_count == 1) {
      weights.through = of_tokens(heads.mean(0));
      weights.front = in_front(heads.mean(0)).item<double>();
    }
  }
  if (layer_count == 1) return weights;
  Tensor through = read;
  for (int64_t layer = layer_count - 1; layer >= 0; --layer)
    through = (through +
               heads_of(layers[static_cast<size_t>(layer)], through).mean(0, true)) /
              2;
  weights.through = of_tokens(through[0]);
  weights.front = in_front(through[0]).item<double>();
  return weights;
}

}  // namespace longspan
