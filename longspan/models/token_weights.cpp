#include "longspan/models/token_weights.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "longspan/attention/attention_watch.h"
#include "longspan/attention/grc.h"
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
    std::set<const Part*> parts;
    for (const Seen& seen : layers[layer]) {
      const std::string_view name = seen.part.mechanism().name;
      require(seen.out.size(2) == tokens && seen.v.size(2) == tokens, "layer ", layer,
              ", ", name, ", goes from ", seen.v.size(2), " to ", seen.out.size(2),
              " tokens in place of the ", tokens,
              " of the model, so its weights are not of tokens");
      require(parts.insert(&seen.part).second, "layer ", layer, " applies ", name,
              " more than once, to what it made before, so it has no weights of heads ",
              "that could be shown");
    }
  }
}

// The parts of heads that are read from a memory, [H], or undefined. Where the memory
// has groups of channels in place of heads, each head has the mean.
std::vector<Tensor> memories_of(const Classifier& model, size_t layers, int64_t heads) {
  std::vector<Tensor> all(layers);
  for (const MemoryShare& memory : memory_shares(model))
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::string name = ".layer" + std::to_string(layer) + ".";
      if (memory.name.find(name) == std::string::npos) continue;
      const Tensor share = memory.share.to(torch::kDouble);
      all[layer] = memory.of_heads ? share : share.mean().expand({heads});
    }
  return all;
}

// What the classifier reads of B texts of so many tokens, as shares of them and of
// those in front: [B, front + N].
Tensor read_shares(bool reads_front, int64_t front, const std::vector<int64_t>& counts,
                   int64_t tokens, const torch::TensorOptions& options) {
  Tensor read = torch::zeros({static_cast<int64_t>(counts.size()), front + tokens},
                             options.dtype(torch::kDouble));
  for (size_t text = 0; text < counts.size(); ++text) {
    const Tensor row = read[static_cast<int64_t>(text)];
    if (reads_front)
      row[0] = 1;
    else
      row.slice(0, front, front + counts[text])
          .fill_(1 / static_cast<double>(counts[text]));
  }
  return read;
}

}  // namespace

std::vector<TokenWeights> token_weights(Classifier& model,
                                        const TransformerOptions& options,
                                        const std::vector<Tensor>& texts,
                                        const Record& carry) {
  require(!texts.empty(), "weights of tokens need a text");
  std::vector<int64_t> counts;
  for (const Tensor& ids : texts) {
    require(ids.dim() == 1 && ids.size(0) > 0,
            "weights of tokens need ids [N] of 1 or more, got ", shape(ids));
    counts.push_back(ids.size(0));
  }
  require(options.pooling != "pma",
          "model.pooling: pma reads by an attention of its own, whose weights are not ",
          "shown; the others are cls and mean");
  const bool reads_front = options.pooling == "cls";
  const int64_t layer_count = options.layers,
                tokens = *std::ranges::max_element(counts);
  const torch::NoGradGuard without_gradients;
  ByLayer layers(static_cast<size_t>(layer_count));
  Tensor logits;
  {
    const int64_t before = blocks_run();
    const AttentionWatch watch([&](const Seen& seen) {
      const int64_t layer = blocks_run() - before - 1;
      require(layer >= 0 && layer < layer_count, seen.part.mechanism().name,
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
  const int64_t front = std::max(options.global_tokens, int64_t{reads_front});
  check_layers(layers, front + tokens);
  const auto memories = memories_of(model, layers.size(), options.heads);

  const auto heads_of = [&](size_t layer, const Tensor& rows) {  // [B, H, front + N]
    std::vector<Tensor> heads;
    for (const Seen& seen : layers[layer])
      heads.push_back(
          key_shares(seen, rows.to(seen.v.scalar_type())).to(torch::kDouble));
    const Tensor all = torch::cat(heads, 1);
    if (!memories[layer].defined()) return all;
    const Tensor left = 1 - memories[layer].to(all.device());
    return all * (left.size(0) == all.size(1) ? left : left.mean().expand(all.size(1)))
                     .view({1, -1, 1});
  };
  const Tensor read = read_shares(reads_front, front, counts, tokens, logits.options());
  std::vector<TokenWeights> all(texts.size());
  // Fills in the shares of each text out of [B, .., front + N].
  const auto divide = [&](const Tensor& shares, const auto& fill) {
    for (size_t text = 0; text < all.size(); ++text) {
      const Tensor own = shares[static_cast<int64_t>(text)].cpu();
      fill(all[text], own.slice(-1, front, front + counts[text]),
           own.slice(-1, 0, front).sum(-1));
    }
  };
  Tensor through = read, in_memory = torch::zeros({read.size(0)}, read.options());
  for (size_t layer = layers.size(); layer-- > 0;) {
    const Tensor heads = heads_of(layer, read);
    divide(heads, [&](TokenWeights& of, const Tensor& shares, const Tensor& first) {
      of.layers.insert(
          of.layers.begin(),
          {.layer = static_cast<int64_t>(layer),
           .mechanism = std::string(layers[layer].front().part.mechanism().name),
           .heads = shares,
           .front = first,
           .memory = memories[layer].defined() ? memories[layer].cpu() : Tensor()});
    });
    const Tensor mixed = layers.size() == 1 ? heads : heads_of(layer, through);
    const double passed = layers.size() == 1 ? 0 : 0.5;
    if (memories[layer].defined())
      in_memory = in_memory +
                  (1 - passed) * through.sum(1) * memories[layer].mean().item<double>();
    through = passed * through + (1 - passed) * mixed.mean(1);
  }
  divide(through, [](TokenWeights& of, const Tensor& shares, const Tensor& first) {
    of.through = shares;
    of.front = first.item<double>();
  });
  const Tensor probabilities = torch::softmax(logits[0], 0).to(torch::kDouble).cpu();
  for (size_t text = 0; text < all.size(); ++text) {
    all[text].memory = in_memory[static_cast<int64_t>(text)].item<double>();
    all[text].probabilities = {
        probabilities.data_ptr<double>(),
        probabilities.data_ptr<double>() + probabilities.numel()};
  }
  return all;
}

}  // namespace longspan
