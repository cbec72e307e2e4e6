#include "longspan/cli/wide_models.h"

#include <torch/csrc/autograd/generated/variable_factories.h>

#include "longspan/attention/linear_map.h"
#include "longspan/models/classifier.h"

namespace longspan::cli {
namespace {

using torch::Tensor;

constexpr WideTask kTasks[] = {
    // The vocabulary is that of the printed sizes.
    {.name = "imdb-token",
     .ids = 93970,
     .longest = 500,
     .classes = 2,
     .embedding = 512,
     .head_width = 64,
     .inner = 2048,
     .heads = 48,
     .layers = 6},
    {.name = "imdb-byte",
     .ids = 257,
     .longest = 1000,
     .classes = 2,
     .embedding = 512,
     .head_width = 64,
     .inner = 2048,
     .heads = 48,
     .layers = 6},
    {.name = "listops",
     .ids = 17,
     .longest = 2000,
     .classes = 10,
     .embedding = 512,
     .head_width = 64,
     .inner = 2048,
     .heads = 48,
     .layers = 6},
    {.name = "matching",
     .ids = 257,
     .longest = 4000,
     .classes = 2,
     .embedding = 128,
     .head_width = 32,
     .inner = 512,
     .heads = 16,
     .layers = 4,
     .of_pairs = true},
};

constexpr WideMechanism kMechanisms[] = {
    {"BigBird", "{name: bigbird, block: 64, random: 3}"},
    {"Linear", "linear"},
    {"Linformer", "{name: linformer, projected: 16, sharing: key_value}"},
    {"Local", "{name: local, block: 50}"},
    {"Longformer", "{name: longformer, window: 256}"},
    {"Performer",
     "{name: linear, map: relu}"},  // of the arena: without random features
    {"Sinkhorn", "{name: sinkhorn, block: 50}"},
    {"Sparse",
     "{name: sparse_fixed, stride: 50, summary: 10, heads: merged, first_column: "
     "true}"},
    {"Synthesizer", "{name: synthesizer, parts: [factorised_random, dot], factor: 32}"},
    {"Transformer", "dense"},
};

// Of the printed sizes: without scores of queries and keys on IMDb.
constexpr std::string_view kSynthesizerOfImdb =
    "{name: synthesizer, parts: [factorised_random], factor: 32}";

// Two texts go through one encoder, and two layers with ReLU judge both vectors; a text
// has the vector of its first token, or the mean of all.
class PairModel final : public torch::nn::Module {
 public:
  PairModel(const TransformerOptions& options, const WideTask& task)
      : mean_(options.pooling == "mean") {
    encoder_ = register_module(
        "encoder",
        std::make_shared<Transformer>(
            options, Transformer::Inputs{.ids = task.ids, .longest = task.longest}));
    first_ = make_linear(*this, "first", task.inner, 2 * task.embedding, true);
    second_ = make_linear(*this, "second", task.inner / 2, task.inner, true);
    out_ = make_linear(*this, "out", task.classes, task.inner / 2, true);
  }

  Tensor forward(const Tensor& ids, const Tensor& tokens, Pass& pass) {
    const Tensor x = encoder_->forward(ids, tokens, pass).x;
    const Tensor of_texts = mean_ ? x.mean(1) : x.select(1, 0);
    const auto halves = of_texts.chunk(2);
    return out_(torch::relu(
        second_(torch::relu(first_(torch::cat({halves[0], halves[1]}, 1))))));
  }

 private:
  bool mean_;
  std::shared_ptr<Transformer> encoder_;
  Linear first_, second_, out_;
};

template <class Model>
WideModel wide_model(std::shared_ptr<Model> model) {
  model->eval();
  return {.module = model, .forward = [model](const Tensor& ids) {
            Pass pass;
            return model->forward(ids, torch::ones_like(ids, torch::kBool), pass);
          }};
}

}  // namespace

std::span<const WideTask> wide_tasks() { return kTasks; }
std::span<const WideMechanism> wide_mechanisms() { return kMechanisms; }

TransformerOptions wide_options(const WideMechanism& mechanism, const WideTask& task,
                                bool deep) {
  const bool of_imdb = task.name.starts_with("imdb");
  const bool is_sinkhorn = mechanism.name == "Sinkhorn";
  const int64_t layers = deep ? task.layers : 1;
  return {.layers = layers,
          .embedding = task.embedding,
          .heads = task.heads / layers,
          .head_width = task.head_width,
          .inner = task.inner,
          .attention = Value::parse(std::string(
              mechanism.name == "Synthesizer" && of_imdb ? kSynthesizerOfImdb
                                                         : mechanism.attention)),
          .activation = "gelu_tanh",
          .pooling = is_sinkhorn ? "mean" : "cls",
          .head = is_sinkhorn ? "linear" : "mlp"};
}

WideModel make_wide_model(const WideMechanism& mechanism, const WideTask& task,
                          bool deep) {
  const TransformerOptions options = wide_options(mechanism, task, deep);
  if (task.of_pairs) return wide_model(std::make_shared<PairModel>(options, task));
  return wide_model(
      std::make_shared<Classifier>(options, task.ids, task.longest, task.classes));
}

}  // namespace longspan::cli
