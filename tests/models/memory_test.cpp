// Language models that remember the segments before: by hidden states of their layers,
// or by tokens that recur.

#include <algorithm>
#include <cmath>

#include "longspan/base/read_file.h"
#include "longspan/models/classifier.h"
#include "longspan/models/language_model.h"
#include "longspan/train/checkpoint.h"
#include "longspan/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr int64_t kIds = 11, kLongest = 48;

TransformerOptions small(const std::string& attention = "dense") {
  TransformerOptions options{.layers = 2, .embedding = 12, .heads = 3, .inner = 20};
  options.attention = Value::parse(attention);
  options.dropout = 0;
  return options;
}

TransformerOptions remembering(int64_t slots, bool recurs, int64_t segment = 0) {
  TransformerOptions options = small();
  options.memory_tokens = slots;
  options.recurrent_memory = recurs;
  options.segment = segment;
  return options;
}

std::shared_ptr<LanguageModel> model_of(const TransformerOptions& options,
                                        int64_t longest = kLongest) {
  torch::manual_seed(5);
  auto model = std::make_shared<LanguageModel>(options, kIds, longest,
                                               LanguageModel::Sees::past);
  convert(*model, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  for (const Tensor& parameter : model->parameters())
    parameter.add_(torch::randn_like(parameter) * 0.1);
  return model;
}

Tensor ids_of(int64_t count, int64_t examples = 2) {
  torch::manual_seed(2);
  return torch::randint(1, kIds, {examples, count}, torch::kLong);
}

Tensor forward(LanguageModel& model, const Tensor& ids, Record* carry,
               Record* state = nullptr) {
  Pass pass;
  pass.carry = carry;
  pass.state = state;
  return model.forward(ids, ids > 0, pass);
}

// Pieces that end at `ends`, one after the other, with one carry or one state.
Tensor in_pieces(LanguageModel& model, const Tensor& ids,
                 const std::vector<int64_t>& ends, bool decodes = false) {
  const torch::NoGradGuard without_gradients;
  Record kept;
  Tensors outs;
  int64_t from = 0;
  for (const int64_t to : ends) {
    outs.push_back(forward(model, ids.slice(1, from, to), decodes ? nullptr : &kept,
                           decodes ? &kept : nullptr));
    from = to;
  }
  return torch::cat(outs, 1);
}

Tensor at_once(LanguageModel& model, const Tensor& ids) {
  const torch::NoGradGuard without_gradients;
  return forward(model, ids, nullptr);
}

TEST(HiddenMemory, StandsInSomeLayersBesideACacheInOthers) {
  TransformerOptions options = small("{name: transformer_xl, memory: 7}");
  options.by_layer = Value::parse("[{at: 1, attention: {name: grc, slots: 4}}]");
  EXPECT_EQ(model_of(options)->carry(), Carry::both);
}

TEST(HiddenMemory, SegmentsAreOneSequenceForAWholeModel) {
  const auto ids = ids_of(40);
  for (const char* attention :
       {"{name: transformer_xl, memory: 40}",
        "{name: transformer_xl, memory: 7, same_length: true}",
        "{name: compressive, memory: 39, compressed: 3, rate: 2}"}) {
    TransformerOptions options = small(attention);
    options.positions = "none";
    const auto model = model_of(options);
    EXPECT_EQ(model->carry(), Carry::per_example);
    const auto whole = at_once(*model, ids);
    EXPECT_TRUE(close(in_pieces(*model, ids, {10, 20, 30, 40}), whole, 1e-10))
        << attention;
    EXPECT_TRUE(close(in_pieces(*model, ids, {1, 3, 33, 40}), whole, 1e-10))
        << attention;
  }
}

// Beyond the longest sequence decoding goes on as segments of it do, and its state
// grows no more.
TEST(HiddenMemory, DecodesInSegments) {
  const auto ids = ids_of(43);
  for (const char* attention :
       {"{name: transformer_xl, memory: 5}", "{name: transformer_xl, memory: 20}",
        "{name: transformer_xl, memory: 5, evaluation_memory: 11}",
        "{name: transformer_xl, memory: 7, same_length: true}",
        "{name: compressive, memory: 5, compressed: 4, rate: 3}",
        "{name: compressive, memory: 5, compressed: 4, rate: 2, compression: "
        "most_used}",
        "{name: grc, slots: 3, mixing: outputs, attention: {name: transformer_xl, "
        "memory: 5}}"}) {
    TransformerOptions options = small(attention);
    options.positions = "none";
    const auto model = model_of(options, /*longest=*/8);
    const auto segments = in_pieces(*model, ids, {8, 16, 24, 32, 40, 43});
    std::vector<int64_t> each;
    for (int64_t to = 1; to <= 43; ++to) each.push_back(to);
    for (const auto& ends :
         {each, {8, 16, 20, 25, 31, 39, 43}, {3, 11, 19, 27, 35, 43}})
      EXPECT_TRUE(
          close(in_pieces(*model, ids, ends, /*decodes=*/true), segments, 1e-10))
          << attention << ends.size();
    const torch::NoGradGuard without_gradients;
    Record state;
    std::vector<int64_t> sizes;
    for (int64_t at = 0; at < 43; ++at) {
      forward(*model, ids.slice(1, at, at + 1), nullptr, &state);
      sizes.push_back(state.numel());
    }
    EXPECT_EQ(sizes[30], sizes[38]) << attention;
    EXPECT_EQ(*std::ranges::max_element(sizes),
              *std::max_element(sizes.begin(), sizes.begin() + 32));
  }
}

TEST(MemoryTokens, AreSeenByAllAndLeftOut) {
  const auto ids = ids_of(20);
  const auto model = model_of(remembering(3, false));
  const auto whole = at_once(*model, ids);
  EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{2, 20, 12}));
  EXPECT_EQ(model->carry(), Carry::none);
  EXPECT_TRUE(close(in_pieces(*model, ids, {1, 2, 9, 20}, /*decodes=*/true), whole));
  forward(*model, ids.slice(1, 0, 1), nullptr).sum().backward();
  const auto slope = model->named_parameters()["transformer.memory"].grad();
  EXPECT_EQ(slope.sizes(), (std::vector<int64_t>{3, 12}));
  EXPECT_TRUE(slope.abs().amax(1).gt(0).all().item<bool>());
}

TEST(MemoryTokens, StandBehindTheGlobalOnesOfAClassifier) {
  TransformerOptions options = small("{name: longformer, window: 2}");
  options.global_tokens = 2;
  options.memory_tokens = 3;
  torch::manual_seed(5);
  Transformer encoder(options, {.ids = kIds, .longest = 20, .cls = true});
  const auto ids = ids_of(20);
  Pass pass;
  const Stream out = encoder.forward(ids, ids > 0, pass);
  EXPECT_EQ(out.x.size(1), 22);
  EXPECT_EQ(out.tokens.size(1), 22);
  EXPECT_EQ(pass.mask.global.sum().item<int64_t>(), 2 * 2);
}

// A model by its definition: each segment a causal row of its own between two copies of
// the memory.
TEST(RecurrentMemory, IsACausalRowForEverySegment) {
  constexpr int64_t kSlots = 3, kSegment = 8;
  const auto model = model_of(remembering(kSlots, true, kSegment));
  TransformerOptions plain = small();
  const auto row = [&] {
    torch::manual_seed(5);
    auto made = std::make_shared<Transformer>(
        plain, Transformer::Inputs{.ids = 1 + kIds + 4 * kSlots,
                                   .longest = kSegment + 2 * kSlots,
                                   .causal = true,
                                   .predicts = true});
    convert(*made, torch::kCPU, torch::kDouble);
    return made;
  }();
  const torch::NoGradGuard copying;
  const auto weights = model->named_parameters();
  for (auto& entry : row->named_parameters())
    if (entry.key().find("vocabulary") == std::string::npos)
      entry.value().copy_(weights["transformer." + entry.key()]);
  // A vocabulary in which the memory of each example has ids of its own.
  Tensor table = row->named_parameters()["vocabulary.embedding"];
  table.slice(0, 0, kIds).copy_(weights["transformer.vocabulary.embedding"]);
  const auto ids = ids_of(2 * kSegment);
  const auto out = at_once(*model, ids);
  const Tensor slots = torch::arange(2 * kSlots, torch::kLong).view({2, kSlots}) + kIds;
  Tensor memory = weights["transformer.memory"].expand({2, kSlots, 12});
  for (int64_t at = 0; at < 2 * kSegment; at += kSegment) {
    // Vectors of a vocabulary are used times sqrt(E).
    table.slice(0, kIds, kIds + 2 * kSlots)
        .copy_(memory.reshape({2 * kSlots, 12}) / std::sqrt(12.0));
    const Tensor in = torch::cat({slots, ids.slice(1, at, at + kSegment), slots}, 1);
    Pass pass;
    const Tensor x = row->forward(in, torch::ones_like(in, torch::kBool), pass).x;
    EXPECT_TRUE(close(out.slice(1, at, at + kSegment),
                      x.slice(1, kSlots, kSlots + kSegment), 1e-12))
        << at;
    memory = x.slice(1, kSlots + kSegment);
  }
}

TEST(RecurrentMemory, SegmentsInOnePassAreSegmentsOneAfterTheOther) {
  const auto ids = ids_of(40);
  const auto model = model_of(remembering(3, true, 8));
  EXPECT_EQ(model->carry(), Carry::per_example);
  const auto whole = at_once(*model, ids);
  EXPECT_TRUE(in_pieces(*model, ids, {8, 16, 24, 32, 40}).equal(whole));
  EXPECT_TRUE(close(in_pieces(*model, ids, {16, 40}), whole, 1e-12));
  // The memory is heard.
  EXPECT_FALSE(close(at_once(*model, ids.slice(1, 8)), whole.slice(1, 8), 1e-3));
}

TEST(RecurrentMemory, DecodesTokenByToken) {
  const auto ids = ids_of(21);
  const auto model = model_of(remembering(2, true, 5));
  const auto whole = at_once(*model, ids);
  std::vector<int64_t> each;
  for (int64_t to = 1; to <= 21; ++to) each.push_back(to);
  EXPECT_TRUE(close(in_pieces(*model, ids, each, /*decodes=*/true), whole, 1e-11));
  EXPECT_TRUE(close(in_pieces(*model, ids, {7, 10, 11, 21}, true), whole, 1e-11));
}

TEST(RecurrentMemory, DoesNotLookAhead) {
  const auto ids = ids_of(24);
  const auto model = model_of(remembering(3, true, 8));
  const auto before = at_once(*model, ids);
  for (const int64_t changed : {0, 5, 7, 8, 15, 23}) {
    Tensor other = ids.clone();
    other[0][changed] = other[0][changed] % (kIds - 1) + 1;
    const auto after = at_once(*model, other);
    EXPECT_TRUE(after.slice(1, 0, changed).equal(before.slice(1, 0, changed)));
    EXPECT_TRUE(after[1].equal(before[1]));
    EXPECT_FALSE(after[0][23].equal(before[0][23])) << changed;
  }
}

TEST(RecurrentMemory, LearnsThroughTheSegmentsOfAPassOnly) {
  const auto ids = ids_of(16);
  const auto model = model_of(remembering(3, true, 8));
  Record carry;
  // The last tokens of the first segment are of an id that stands nowhere else.
  const auto marked = torch::where(ids == 10, torch::full_like(ids, 9), ids).clone();
  marked.slice(1, 6, 8).fill_(10);
  const auto slope_of_mark = [&](const Tensor& out) {
    model->zero_grad();
    out.slice(1, out.size(1) - 8).sin().sum().backward();
    return model->named_parameters()["transformer.vocabulary.embedding"]
        .grad()[10]
        .abs()
        .max()
        .item<double>();
  };
  EXPECT_GT(slope_of_mark(forward(*model, marked, &carry)), 1e-8);
  carry = {};
  forward(*model, marked.slice(1, 0, 8), &carry);
  EXPECT_EQ(slope_of_mark(forward(*model, marked.slice(1, 8), &carry)), 0);
}

TEST(RecurrentMemory, PaddingIsNotRemembered) {
  const auto model = model_of(remembering(3, true, 8));
  const auto ids = ids_of(12, 1);
  const auto padded = torch::constant_pad_nd(ids, {0, 17});
  Record carry, with_padding;
  const torch::NoGradGuard without_gradients;
  EXPECT_TRUE(close(forward(*model, padded, &with_padding).slice(1, 0, 12),
                    forward(*model, ids, &carry), 1e-12));
  EXPECT_TRUE(close(with_padding.get("memory"), carry.get("memory"), 1e-12));
  const auto kept = carry.get("memory");
  forward(*model, torch::zeros_like(ids), &carry);
  EXPECT_TRUE(carry.get("memory").equal(kept));
}

TEST(RecurrentMemory, DrawsAnewForEverySegment) {
  TransformerOptions options = remembering(2, true, 4);
  options.dropout = 0.5;
  options.layers = 1;
  options.positions = "none";
  const auto model = model_of(options);
  const torch::NoGradGuard without_gradients;
  // Memory that is nothing, so that segments of the same tokens differ by drops alone.
  model->named_parameters()["transformer.layer0.mixer.v_weight"].zero_();
  const auto ids = ids_of(4).repeat({1, 2});
  const auto run = [&, &ids = ids] {
    Pass pass;
    pass.training = true;
    pass.draw = Draw(3, 1);
    return model->forward(ids, ids > 0, pass);
  };
  const auto out = run();
  EXPECT_FALSE(out.slice(1, 0, 4).equal(out.slice(1, 4)));
  EXPECT_TRUE(out.equal(run()));
}

TEST(RecurrentMemory, StandsWithLayersThatAreComputedAgain) {
  const auto ids = ids_of(20);
  const auto slopes = [&](bool recompute, torch::Dtype type) {
    TransformerOptions options = remembering(2, true, 8);
    options.dropout = 0.3;
    options.recompute = recompute;
    const auto model = model_of(options);
    convert(*model, torch::kCPU, type);
    Pass pass;
    pass.training = true;
    pass.draw = Draw(3, 1);
    model->forward(ids, ids > 0, pass).sin().sum().backward();
    Tensors all;
    for (const auto& parameter : model->parameters()) all.push_back(parameter.grad());
    return all;
  };
  for (const auto type : {torch::kDouble, torch::kBFloat16}) {
    const auto kept = slopes(false, type), again = slopes(true, type);
    for (size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(kept[i].defined(), again[i].defined());
      if (kept[i].defined()) {
        EXPECT_TRUE(close(kept[i], again[i], type == torch::kDouble ? 1e-14 : 1e-2))
            << i;
      }
    }
  }
}

TEST(MemoryTokens, RefuseWhatDoesNotFit) {
  const auto refused = [](const TransformerOptions& options) {
    return refusal([&] { model_of(options); });
  };
  EXPECT_EQ(refused(remembering(0, true)),
            "model.recurrent_memory needs model.memory_tokens of 1 or more, got 0");
  EXPECT_EQ(
      refused(remembering(2, false, 8)),
      "model.segment, 8, is of model.recurrent_memory, which is false; must be 0");
  TransformerOptions options = remembering(2, true);
  options.attention = "transformer_xl";
  EXPECT_EQ(
      refused(options),
      "model.recurrent_memory: transformer_xl keeps something from batch to batch "
      "itself");
  options.attention = "axial_decoder";
  options.layers = 1;
  EXPECT_EQ(refused(options),
            "model.memory_tokens: axial_decoder has an order or a number of tokens of "
            "its own, so it must be 0");
  EXPECT_EQ(
      refusal([] { Classifier(remembering(2, true), kIds, kLongest, 3); }),
      "model.recurrent_memory is for models that see only tokens before, but this "
      "model sees all");
  const auto model = model_of(remembering(2, true, 8));
  Record carry;
  forward(*model, ids_of(8), &carry);
  EXPECT_EQ(
      refusal([&] { forward(*model, ids_of(8, 3), &carry); }),
      "the memory is carried from a batch of 2 examples to one of 3; batches that "
      "follow each other have the same examples");
}

// Windows of one text, to be foretold.
class Windows final : public Dataset {
 public:
  Windows(int64_t count, uint64_t seed) {
    torch::manual_seed(seed);
    text_ = torch::randint(1, kIds, {count * kWindow + 1}, torch::kLong);
  }

  int64_t size() const override { return text_.size(0) / kWindow; }
  int64_t length(int64_t) const override { return kWindow; }
  uint32_t fingerprint() const override { return 7; }
  Batch batch(std::span<const int64_t> numbers, const BatchOptions&) const override {
    Batch batch;
    Tensors ids, targets;
    for (const int64_t number : numbers) {
      const int64_t at = std::max<int64_t>(number, 0) * kWindow;
      const int64_t real = number < 0 ? 0 : 1;
      ids.push_back(text_.slice(0, at, at + kWindow) * real);
      targets.push_back(text_.slice(0, at + 1, at + kWindow + 1) * real - (1 - real));
    }
    batch.ids = torch::stack(ids);
    batch.targets = torch::stack(targets);
    batch.tokens = batch.ids > 0;
    batch.real_tokens = batch.answers = batch.tokens.sum().item<int64_t>();
    return batch;
  }

 private:
  static constexpr int64_t kWindow = 8;
  Tensor text_;
};

TrainOptions windows_training(int64_t steps) {
  TrainOptions options;
  options.steps = steps;
  options.batch = 5;
  options.micro_batch = 3;
  options.evaluate_every = 4;
  options.learning_rate = 0.01;
  options.schedule = Value::parse("[constant]");
  options.tensorboard = false;
  return options;
}

// What is kept of the weights at the end, with what the model carries.
NamedTensors trained(const TransformerOptions& model, const TrainOptions& options,
                     const std::string& folder, const std::string& resume = "") {
  Task task{.name = "windows", .goal = Goal::next_token, .ids = kIds, .longest = 8};
  uint64_t seed = 1;
  for (const char* split : {"train", "valid", "test"})
    task.texts[split] = std::make_shared<Windows>(23, seed++);
  torch::manual_seed(5);
  LanguageModel made(model, kIds, 8, LanguageModel::Sees::past);
  convert(made, torch::kCPU, dtype_of(options));
  LanguageModelling objective(task, made);
  train(objective, options, {.folder = folder, .resume = resume, .quiet = true});
  return read_weights(folder + "/checkpoints/step-" + std::to_string(options.steps));
}

void expect_same(const NamedTensors& a, const NamedTensors& b, double tolerance = 0) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(close(tensor, b.at(name), tolerance)) << name;
}

constexpr char kGrc[] = "{name: grc, slots: 5}";
constexpr char kBoth[] =
    "{name: grc, slots: 5, mixing: outputs, attention: {name: transformer_xl, memory: "
    "6}}";

// What is carried is saved with the training, and taken again.
TEST(ATrainingWithMemory, GoesOnAsIfItHadNotStopped) {
  std::vector<TransformerOptions> models = {remembering(2, true, 4)};
  for (const char* attention :
       {"{name: transformer_xl, memory: 6}",
        "{name: compressive, memory: 4, compressed: 4, rate: 2, compression: "
        "most_used}",
        kGrc, kBoth}) {
    models.push_back(small(attention));
    models.back().layers = 1;
  }
  models.push_back(small("{name: transformer_xl, memory: 6}"));
  models.back().by_layer =
      Value::parse("[{at: 1, attention: " + std::string(kGrc) + "}]");
  for (const auto& model : models) {
    const Folder folder;
    const auto whole = trained(model, windows_training(7), folder / "whole");
    trained(model, windows_training(3), folder / "parts");
    expect_same(whole, trained(model, windows_training(7), folder / "parts", "auto"));
  }
}

TEST(ATrainingWithMemory, KeepsTheCacheWithTheWeights) {
  for (const char* attention : {kGrc, kBoth}) {
    const Folder folder;
    const auto model = small(attention);
    auto options = windows_training(6);
    const auto weights = trained(model, options, folder / "often");
    for (const char* layer : {"layer0", "layer1"}) {
      const Tensor cache = weights.at("carry." + std::string(layer) + ".cache#mean");
      EXPECT_EQ(cache.sizes(), (std::vector<int64_t>{5, 6}));
      EXPECT_TRUE(cache.ne(0).any().item<bool>());
    }
    // Evaluation reads it, and does not change it.
    options.evaluate_every = 100;
    expect_same(weights, trained(model, options, folder / "once"));

    torch::manual_seed(1);
    LanguageModel made(model, kIds, 8, LanguageModel::Sees::past);
    Record carry = load_weights(made, weights, "it");
    made.eval();
    const torch::NoGradGuard without_gradients;
    const auto ids = ids_of(8);
    const Tensor with = forward(made, ids, &carry);
    EXPECT_FALSE(with.equal(forward(made, ids, nullptr)));
    for (const auto& [name, tensor] : load_weights(made, weights, "it").all())
      EXPECT_TRUE(tensor.equal(carry.all().at(name))) << name;
  }
}

// Causal, the cache is computed from all examples of the batch before, whatever the
// micro-batches.
TEST(ATrainingWithMemory, AddsUpMicroBatches) {
  for (const char* attention : {kGrc, kBoth}) {
    const Folder folder;
    auto options = windows_training(6);
    options.precision = "double";
    const auto parts = trained(small(attention), options, folder / "parts");
    options.micro_batch = 5;
    expect_same(trained(small(attention), options, folder / "whole"), parts, 1e-7);
  }
}

TEST(ATrainingWithMemory, LeavesWhatOtherBatchesCarried) {
  const Folder folder;
  const auto model = small(kBoth);
  trained(model, windows_training(3), folder / "first");
  auto options = windows_training(5);
  options.batch = 7;
  trained(model, options, folder / "other", folder / "first/checkpoints/step-3");
  EXPECT_NE(read_file(folder / "other/log.txt")
                .find("what its examples carried is left, for batches are cut into "
                      "other passes here"),
            std::string::npos);
  options.batch = 5;
  trained(model, options, folder / "same", folder / "first/checkpoints/step-3");
  EXPECT_EQ(read_file(folder / "same/log.txt").find("is left"), std::string::npos);
}

}  // namespace
}  // namespace longspan::testing
