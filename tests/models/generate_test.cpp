#include "longspan/models/generate.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "longspan/attention/rotary.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::close;
using testing::devices;
using testing::refusal;
using testing::Tensor;

constexpr int64_t kIds = 11, kLongest = 40;
using Prompts = std::vector<std::vector<int32_t>>;

TransformerOptions small(const char* attention = "dense") {
  TransformerOptions options{
      .layers = 2, .embedding = 16, .heads = 4, .inner = 20, .dropout = 0};
  options.attention = Value::parse(attention);
  return options;
}

std::shared_ptr<LanguageModel> made(
    const TransformerOptions& options,
    LanguageModel::Sees sees = LanguageModel::Sees::past) {
  torch::manual_seed(3);
  auto model = std::make_shared<LanguageModel>(options, kIds, kLongest, sees);
  convert(*model, torch::kCPU, torch::kDouble);
  model->eval();
  const torch::NoGradGuard changing;
  for (const Tensor& parameter : model->parameters())
    parameter.add_(torch::randn_like(parameter) * 0.3);
  return model;
}

Tensor log_probabilities(LanguageModel& model, const Tensor& ids, Pass& pass) {
  return model.log_probabilities(
      model.forward(ids, torch::ones_like(ids, torch::kBool), pass));
}

// Every mechanism that is causal and decodes, with every kind of positions it takes: a
// few tokens at once, then one by one, against all of them.
TEST(LanguageModel, DecodesAsItReadsWithEveryMechanismAndPosition) {
  const torch::NoGradGuard without_gradients;
  constexpr int64_t kTokens = 21;
  torch::manual_seed(1);
  const Tensor ids = torch::randint(1, kIds, {2, kTokens}, torch::kLong);
  int models = 0;
  for (const Mechanism* row : mechanisms()) {
    if (!row->can.decoding || row->can.causal == Causal::never) continue;
    for (const char* positions :
         {"sinusoidal", "learned", "rotary", "alibi", "t5", "grid", "none"}) {
      const std::string kind = positions;
      if (kind == "rotary" && !can_turn(*row, row->can)) continue;
      if ((kind == "alibi" || kind == "t5" || kind == "grid") && !row->can.bias)
        continue;
      TransformerOptions options = small();
      options.layers = row->seam() == "stack" ? 1 : 2;
      options.positions = kind;
      options.grid_width = 6;
      options.t5_buckets = 6;
      options.t5_reach = 10;
      Value::Map attention =
          *Value::parse(std::string(row->test_settings)).as<Value::Map>();
      attention.insert_or_assign("name", std::string(row->name));
      options.attention = attention;
      std::shared_ptr<LanguageModel> model;
      const std::string reason = refusal([&] { model = made(options); });
      if (reason.find("foretold") != std::string::npos) continue;
      if (!row->order.empty()) {
        EXPECT_NE(reason.find("is causal in the order of"), std::string::npos)
            << reason;
        continue;
      }
      ASSERT_EQ(reason, "accepted") << row->name << ", " << kind;
      Pass whole;
      const Tensor expected = log_probabilities(*model, ids, whole);
      Record state;
      std::vector<Tensor> parts;
      for (int64_t first = 0; first < kTokens;) {
        const int64_t count = first == 0 ? 5 : first == 9 ? 7 : 1;
        Pass pass;
        pass.state = &state;
        parts.push_back(
            log_probabilities(*model, ids.slice(1, first, first + count), pass));
        first += count;
      }
      EXPECT_TRUE(close(torch::cat(parts, 1), expected, 1e-9))
          << row->name << ", " << kind;
      ++models;
    }
  }
  EXPECT_GT(models, 60);
}

TEST(Choose, FollowsItsRules) {
  const float none = -std::numeric_limits<float>::infinity();
  std::vector<float> log_p;
  for (const double p : {0.1, 0.4, 0.0, 0.3, 0.2})
    log_p.push_back(p > 0 ? static_cast<float>(std::log(p)) : none);
  const auto shares = [&](const Sampling& sampling) {
    constexpr int kTimes = 1000;
    std::vector<double> found(log_p.size());
    for (int i = 0; i < kTimes; ++i)
      found[static_cast<size_t>(choose(log_p, sampling, (i + 0.5) / kTimes))] +=
          1.0 / kTimes;
    return torch::tensor(found, torch::kDouble);
  };
  const auto expect = [&](const Sampling& sampling, std::vector<double> weights) {
    const Tensor expected = torch::tensor(weights, torch::kDouble);
    EXPECT_LT((shares(sampling) - expected / expected.sum()).abs().max().item<double>(),
              0.002);
  };
  expect({}, {0.1, 0.4, 0, 0.3, 0.2});
  expect({.temperature = 0}, {0, 1, 0, 0, 0});
  expect({.temperature = 0.5}, {0.01, 0.16, 0, 0.09, 0.04});
  expect({.top_k = 2}, {0, 0.4, 0, 0.3, 0});
  expect({.top_k = 9}, {0.1, 0.4, 0, 0.3, 0.2});
  expect({.top_p = 0.75}, {0, 0.4, 0, 0.3, 0.2});
  expect({.top_p = 0.3}, {0, 1, 0, 0, 0});
  // Of the two, 4 : 3, the first has more than half.
  expect({.top_k = 2, .top_p = 0.5}, {0, 1, 0, 0, 0});
  const std::vector<float> ties = {-1, -1, -1};
  EXPECT_EQ(choose(ties, {.temperature = 0}, 0), 0);
  EXPECT_EQ(choose(ties, {.top_k = 1}, 0.9), 0);
  EXPECT_EQ(refusal([&] { choose(log_p, {.top_p = 0}, 0); }),
            "top_p must be more than 0 and at most 1, got 0");
  EXPECT_EQ(refusal([&] { choose(std::vector<float>(3, none), {}, 0); }),
            "there is no token that may be chosen");
}

TEST(Generate, TakesTheLikeliestOfTheWholePassAndItsLogProbability) {
  const torch::NoGradGuard without_gradients;
  for (const char* attention : {"dense", "linear", "{name: sliding, window: 4}"}) {
    const auto model = made(small(attention));
    const auto found =
        generate(*model, {{1, 2, 3}}, {.sampling = {.temperature = 0}, .tokens = 12});
    std::vector<int64_t> ids = {1, 2, 3};
    for (const NewToken& token : found[0].tokens) {
      Pass pass;
      const Tensor log_p = log_probabilities(
          *model, torch::tensor(ids, torch::kLong).unsqueeze(0), pass)[0][-1];
      EXPECT_EQ(token.id, log_p.slice(0, 1).argmax().item<int64_t>() + 1);
      EXPECT_NEAR(token.log_probability, log_p[token.id].item<double>(), 1e-5);
      ids.push_back(token.id);
    }
    EXPECT_EQ(ids.size(), 15);
    EXPECT_FALSE(found[0].stopped);
  }
}

void expect_same(const Continuation& a, const Continuation& b, std::string_view what) {
  ASSERT_EQ(a.tokens.size(), b.tokens.size()) << what;
  EXPECT_EQ(a.stopped, b.stopped) << what;
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].id, b.tokens[i].id) << what << ", token " << i;
    EXPECT_NEAR(a.tokens[i].log_probability, b.tokens[i].log_probability, 1e-9);
  }
}

// With every mechanism that decodes.
TEST(Generate, GivesEachPromptWhatItGetsAlone) {
  const Prompts prompts = {
      {1, 2, 3, 4, 5, 6, 7, 8, 9}, {4}, {2, 2}, {5, 6, 7, 8, 9}, {3}};
  int models = 0;
  bool any_stopped = false, any_long = false;
  for (const Mechanism* row : mechanisms()) {
    if (!row->can.decoding || row->can.causal == Causal::never) continue;
    TransformerOptions settings = small();
    Value::Map attention =
        *Value::parse(std::string(row->test_settings)).as<Value::Map>();
    attention.insert_or_assign("name", std::string(row->name));
    settings.attention = attention;
    settings.layers = row->seam() == "stack" ? 1 : 2;
    std::shared_ptr<LanguageModel> model;
    if (refusal([&] { model = made(settings); }) != "accepted") continue;
    ++models;
    GenerateOptions options{.tokens = 14, .stops = {7}, .never = {0, 8}, .seed = 5};
    const auto together = generate(*model, prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      options.first_number = static_cast<int64_t>(i);
      expect_same(together[i], generate(*model, {prompts[i]}, options)[0], row->name);
      any_stopped = any_stopped || together[i].stopped;
      any_long = any_long || together[i].tokens.size() == 14;
      for (const NewToken& token : together[i].tokens)
        EXPECT_TRUE(token.id != 0 && token.id != 8) << row->name;
    }
    options.first_number = 0;
    options.seed = 6;
    bool any_other = false;
    const auto others = generate(*model, prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i)
      any_other = any_other || others[i].tokens.back().log_probability !=
                                   together[i].tokens.back().log_probability;
    EXPECT_TRUE(any_other) << row->name;
  }
  EXPECT_GT(models, 35);
  EXPECT_TRUE(any_stopped && any_long);
}

// A causal model does not know how long a text becomes: what takes its sizes from a
// length takes those of the longest, and so generates.
TEST(LanguageModel, DecodesAsItReadsWithStandardSettings) {
  const torch::NoGradGuard without_gradients;
  torch::manual_seed(1);
  const Tensor ids = torch::randint(1, kIds, {2, 33}, torch::kLong);
  for (const char* attention :
       {"blockwise", "{name: blockwise, blocks: 5, shifts: [0, 1]}", "sparse_axial",
        "axial", "{name: axial, shape: [0, 3, 0]}", "{name: sparse_strided, stride: 0}",
        "{name: sparse_fixed, stride: 0, summary: 2}",
        "{name: sparse_fixed, stride: 0, summary: 2, heads: interleave}"}) {
    const auto model = made(small(attention));
    Pass whole;
    const Tensor expected = log_probabilities(*model, ids, whole);
    Record state;
    std::vector<Tensor> parts;
    for (int64_t first = 0; first < ids.size(1);) {
      const int64_t end = first == 0 ? 17 : first + 1;
      Pass pass;
      pass.state = &state;
      parts.push_back(log_probabilities(*model, ids.slice(1, first, end), pass));
      first = end;
      Pass of_part;  // a shorter text is the beginning of a longer one
      EXPECT_TRUE(close(log_probabilities(*model, ids.slice(1, 0, end), of_part),
                        expected.slice(1, 0, end), 1e-9))
          << attention << ' ' << end;
    }
    EXPECT_TRUE(close(torch::cat(parts, 1), expected, 1e-9)) << attention;
  }
}

TEST(Generate, EndsWhenItIsTold) {
  const auto model = made(small());
  std::vector<int64_t> told;
  const auto found = generate(*model, {{1}, {2}}, {.tokens = 9},
                              [&](int64_t prompt, const NewToken& token) {
                                if (prompt == 1) told.push_back(token.id);
                                return prompt == 0 || told.size() < 4;
                              });
  EXPECT_EQ(found[0].tokens.size(), 9);
  EXPECT_TRUE(found[1].stopped);
  ASSERT_EQ(found[1].tokens.size(), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(found[1].tokens[i].id, told[i]);
  EXPECT_TRUE(generate(*model, {{1}}, {.tokens = 0})[0].tokens.empty());
  EXPECT_TRUE(generate(*model, {}, {}).empty());
}

TEST(Generate, RefusesWhatDoesNotFitAndGoesBeyondIfAsked) {
  const auto model = made(small("{name: sliding, window: 4}"));
  const Prompts prompt = {std::vector<int32_t>(38, 1)};
  EXPECT_EQ(refusal([&] { generate(*model, prompt, {.tokens = 3}); }),
            "prompt 1 of 38 tokens and 3 new ones are more than the 40 that the model "
            "was made for; ask for fewer, or to go beyond");
  EXPECT_EQ(
      generate(*model, {std::vector<int32_t>(90, 1)}, {.tokens = 3, .beyond = true})[0]
          .tokens.size(),
      3);
  EXPECT_EQ(refusal([&] {
              generate(*model, {{1}, {}}, {});
            }),
            "prompt 2 has no tokens; it needs one or more");
  EXPECT_EQ(refusal([&] { generate(*model, {{11}}, {}); }),
            "prompt 1 has the id 11, but the model has ids 0 to 10");
  EXPECT_EQ(
      refusal([&] { generate(*model, {{1}}, {.sampling = {.temperature = -1}}); }),
      "the temperature must be 0 or more, got -1");
  const auto masked = made(small(), LanguageModel::Sees::all);
  EXPECT_EQ(refusal([&] { generate(*masked, {{1}}, {}); }),
            "a model that sees all tokens continues none; it fills masks");
  EXPECT_EQ(refusal([&] { fill_masks(*model, {{1}}, 9, 2); }),
            "a model that sees the past alone fills no masks; it continues texts");
}

TEST(FillMasks, GivesTheLikeliestIdsOfEveryMask) {
  const torch::NoGradGuard without_gradients;
  const auto model = made(small(), LanguageModel::Sees::all);
  constexpr int64_t kMask = 10;
  const Prompts texts = {{1, 10, 3, 10}, {4, 5}, {10}};
  const auto filled = fill_masks(*model, texts, kMask, 3);
  ASSERT_EQ(filled.size(), 3);
  EXPECT_EQ(filled[0].size(), 2);
  EXPECT_TRUE(filled[1].empty());
  EXPECT_EQ(filled[2].size(), 1);
  Pass pass;
  Tensor p =
      log_probabilities(*model, torch::tensor({{1, 10, 3, 10}}, torch::kLong), pass)
          .exp()[0][3];
  for (const Guess& guess : filled[0][1]) {
    const int64_t best = p.slice(0, 1, kMask).argmax().item<int64_t>() + 1;
    EXPECT_EQ(guess.id, best);
    EXPECT_NEAR(guess.probability, p[best].item<double>(), 1e-9);
    p[best] = 0;
  }
  const auto others = fill_masks(*model, texts, kMask, 100, {0, 3, 5});
  EXPECT_EQ(others[2][0].size(), 7);
  for (const Guess& guess : others[2][0])
    EXPECT_TRUE(guess.id != 0 && guess.id != 3 && guess.id != 5 && guess.id != kMask);
}

TEST(Generate, RunsOnEveryDeviceAndInEveryType) {
  for (const torch::Device device : devices()) {
    for (const torch::Dtype type : {torch::kFloat, torch::kBFloat16}) {
      TransformerOptions options = small();
      options.cutoffs = Value::parse("[4]");
      options.positions = "rotary";
      const auto model = made(options);
      convert(*model, device, type);
      const auto found = generate(*model, {{1, 2}, {3}}, {.tokens = 4});
      EXPECT_EQ(found[1].tokens.size(), 4);
    }
  }
}

}  // namespace
}  // namespace longspan
