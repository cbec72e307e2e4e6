#include <torch/csrc/autograd/autograd.h>

#include "longspan/attention/mechanism.h"
#include "tests/support/any_threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr int64_t kLongest = 300, kHeads = 4;

std::shared_ptr<Mixer> made(const std::string& settings, int64_t longest = kLongest,
                            torch::Dtype dtype = torch::kDouble) {
  torch::manual_seed(3);
  const Sizes sizes{.embedding = 24,
                    .heads = kHeads,
                    .key_heads = 2,
                    .head_width = 8,
                    .value_width = 6,
                    .longest = longest};
  const auto mixer = make<Mixer>(catalogue::synthesizer, sizes,
                                 *Value::parse(settings).as<Value::Map>());
  convert(*mixer, torch::kCPU, dtype);
  const torch::NoGradGuard changing;
  for (Tensor& parameter : mixer->parameters())
    parameter += 0.3 * torch::randn_like(parameter);
  return mixer;
}

Tensor in_heads(const Tensor& x) {
  return x.unflatten(2, {kHeads, -1}).transpose(1, 2);
}

Tensor parameter(const Mixer& mixer, const std::string& name) {
  return mixer.named_parameters()[name];
}

Tensor mapped(const Mixer& mixer, const std::string& name, const Tensor& x) {
  const auto all = mixer.named_parameters();
  const Tensor* const bias = all.find(name + "_bias");
  return torch::linear(x, all[name + "_weight"], bias ? *bias : Tensor());
}

// The layer's output where the weights are the softmax of `scores` [.., H, N, N].
Tensor with_scores(const Mixer& mixer, const Tensor& x, const Tensor& scores) {
  const auto v = mapped(mixer, "v", x)
                     .unflatten(2, {2, 6})
                     .transpose(1, 2)
                     .repeat_interleave(2, 1);
  return mapped(mixer, "out", scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2));
}

Tensor run(Mixer& mixer, const Tensor& x, bool causal = false,
           Record* state = nullptr) {
  Pass pass;
  pass.mask.causal = causal;
  pass.state = state;
  return mixer.forward(x, pass);
}

Tensor some_tokens(int64_t count) { return random_tensors(1, {2, count, 24})[0]; }

TEST(Synthesizer, DenseMakesScoresFromTheQueryAlone) {
  const auto mixer = made("{parts: [dense], hidden: 5}");
  const auto x = some_tokens(70);
  const auto hidden = in_heads(mapped(*mixer, "dense_hidden", x)).relu();
  const auto scores =
      torch::einsum("bhnw,hmw->bhnm",
                    {hidden, parameter(*mixer, "dense_keys").slice(1, 0, 70)}) +
      parameter(*mixer, "dense_bias").slice(1, 0, 70).unsqueeze(1);
  EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)));
}

TEST(Synthesizer, RandomIsATableOfPlaces) {
  const auto mixer = made("{parts: [random]}");
  const auto x = some_tokens(70);
  const auto scores = parameter(*mixer, "random").slice(1, 0, 70).slice(2, 0, 70);
  EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)));
}

TEST(Synthesizer, FixedIsATableThatIsSavedAndNotLearned) {
  const auto mixer = made("{parts: [fixed]}");
  const auto x = some_tokens(70);
  EXPECT_FALSE(mixer->named_parameters().contains("fixed"));
  const auto scores = mixer->named_buffers()["fixed"].slice(1, 0, 70).slice(2, 0, 70);
  EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)));
}

TEST(Synthesizer, FactorisedRandomIsATableOfLowRank) {
  const auto mixer = made("{parts: [factorised_random], factor: 3}");
  const auto x = some_tokens(70);
  const auto scores = torch::einsum(
      "hnk,hmk->hnm", {parameter(*mixer, "factor_queries").slice(1, 0, 70),
                       parameter(*mixer, "factor_keys").slice(1, 0, 70)});
  EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)));
}

TEST(Synthesizer, FactorisedDenseTilesOneVectorAndRepeatsAnother) {
  for (const int64_t period : {0, 1, 7, 64, 300, 1000}) {
    const auto mixer =
        made("{parts: [factorised_dense], period: " + std::to_string(period) + "}");
    for (const int64_t count : {1, 130, 300}) {
      const auto x = some_tokens(count);
      const auto tiled = in_heads(mapped(*mixer, "residue", x)),
                 repeated = in_heads(mapped(*mixer, "quotient", x));
      const int64_t a = tiled.size(3), b = repeated.size(3);
      EXPECT_GE(a * b, kLongest);
      EXPECT_LT(a * (b - 1), kLongest);
      const auto scores =
          (tiled.repeat({1, 1, 1, b}) * repeated.repeat_interleave(a, 3))
              .slice(3, 0, count);
      EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)))
          << count << " tokens, period " << period;
    }
  }
}

TEST(Synthesizer, DotIsDenseAttention) {
  const auto mixer = made("{parts: [dot]}");
  const auto x = some_tokens(70);
  const auto k = mapped(*mixer, "k", x)
                     .unflatten(2, {2, 8})
                     .transpose(1, 2)
                     .repeat_interleave(2, 1);
  const auto scores =
      in_heads(mapped(*mixer, "q", x)).matmul(k.transpose(2, 3)) / std::sqrt(8.0);
  EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)));
}

TEST(Synthesizer, MixturesAreWeighedByASoftmaxOfEveryHead) {
  const auto mixer = made("{parts: [random, factorised_random, fixed]}");
  const auto x = some_tokens(200);
  const auto share = parameter(*mixer, "mixture").softmax(1);
  const auto table = [](const Tensor& all) {
    return all.slice(1, 0, 200).slice(2, 0, 200);
  };
  const Tensor tables[] = {
      parameter(*mixer, "random"),
      parameter(*mixer, "factor_queries")
          .matmul(parameter(*mixer, "factor_keys").transpose(1, 2)),
      mixer->named_buffers()["fixed"]};
  auto scores = torch::zeros({kHeads, 200, 200}, torch::kDouble);
  for (int64_t part = 0; part < 3; ++part)
    scores += share.select(1, part).view({-1, 1, 1}) * table(tables[part]);
  EXPECT_TRUE(close(run(*mixer, x), with_scores(*mixer, x, scores)));
}

// Outputs and gradients, with padding.
Tensors results(Mixer& mixer, const Tensor& x, bool causal, bool defined) {
  Pass pass;
  pass.mask.causal = causal;
  pass.mask.tokens = torch::ones({x.size(0), x.size(1)}, torch::kBool);
  pass.mask.tokens.slice(0, 1, 2).slice(1, x.size(1) / 2).fill_(false);
  const auto input = x.clone().requires_grad_();
  const auto out = defined ? mixer.reference(input, pass) : mixer.forward(input, pass);
  Tensors sources = mixer.parameters();
  sources.push_back(input);
  torch::manual_seed(8);
  Tensors all = torch::autograd::grad({out}, sources, {torch::randn_like(out)});
  all.push_back(out.detach());
  return all;
}

TEST(Synthesizer, TablesHaveTheGradientsOfTheirDefinition) {
  for (const char* settings :
       {"{parts: [random]}", "{parts: [random, dense]}", "{parts: [fixed, dot]}",
        "{parts: [factorised_dense, random, fixed]}"}) {
    const auto mixer = made(settings);
    for (const int64_t count : {1, 70, 257})
      for (const bool causal : {false, true}) {
        const auto x = some_tokens(count);
        const Tensors got = results(*mixer, x, causal, false),
                      expected = results(*mixer, x, causal, true);
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_LT(largest_error(got[i], expected[i]), 1e-10)
              << settings << ", " << count << " tokens, causal " << causal << ", " << i;
      }
  }
}

TEST(Synthesizer, TablesAreTheSameBitsWithAnyNumberOfThreads) {
  const auto mixer =
      made("{parts: [random, fixed, factorised_dense]}", 300, torch::kFloat);
  const auto x = some_tokens(300).to(torch::kFloat);
  EXPECT_TRUE(same_with_any_threads([&] { return results(*mixer, x, true, false); }));
}

TEST(Synthesizer, DecodingKnowsThePlaceOfATokenInATable) {
  for (const char* settings :
       {"{parts: [random]}", "{parts: [dense, random, factorised_dense]}"}) {
    const auto mixer = made(settings);
    const auto x = some_tokens(140);
    Record state;
    Tensors outs = {run(*mixer, x.slice(1, 0, 130), true, &state)};
    for (int64_t i = 130; i < 140; ++i)
      outs.push_back(run(*mixer, x.slice(1, i, i + 1), true, &state));
    EXPECT_TRUE(close(torch::cat(outs, 1), run(*mixer, x, true))) << settings;
    EXPECT_EQ(state.numel(), 2 * 140 * 2 * 6) << "values alone";
  }
}

TEST(Synthesizer, RandomGivesTokensNoSayInTheWeights) {
  const auto mixer = made("{parts: [random]}");
  const auto x = some_tokens(50);
  auto changed = x.clone();
  changed.select(1, 3) += 1;
  // The value of token 3 alone changes, by the same amount in every example.
  const auto difference = run(*mixer, changed) - run(*mixer, x);
  EXPECT_TRUE(close(difference[0], difference[1]));
}

TEST(Synthesizer, RefusesWhatIsLongerThanItsWeights) {
  const auto mixer = made("{}", 30);
  const auto x = some_tokens(31);
  const std::string expected =
      "synthesizer: has weights for 30 tokens (sizes.longest), got 31";
  EXPECT_EQ(refusal([&] { run(*mixer, x); }), expected);
  Record state;
  run(*mixer, x.slice(1, 0, 30), true, &state);
  EXPECT_EQ(refusal([&] { run(*mixer, x.slice(1, 30), true, &state); }), expected);
  EXPECT_EQ(refusal([] { made("{}", 0); }),
            "synthesizer: its weights are for sequences up to a longest one: "
            "sizes.longest must be 1 or more, got 0");
}

TEST(Synthesizer, RefusesPartsItDoesNotHave) {
  EXPECT_EQ(refusal([] { made("{parts: []}"); }),
            "synthesizer: parts must name at least one of dense, random, fixed, "
            "factorised_dense, factorised_random, dot");
  EXPECT_EQ(refusal([] { made("{parts: [dence]}"); }),
            "synthesizer: parts: no choice 'dence'; did you mean 'dense'? there are: "
            "dense, random, fixed, factorised_dense, factorised_random, dot");
  EXPECT_EQ(refusal([] { made("{parts: [dot, dot]}"); }),
            "synthesizer: parts must name 'dot' once");
  EXPECT_EQ(refusal([] { made("{parts: [3]}"); }),
            "synthesizer: parts must be a list of words, got [3]");
}

}  // namespace
}  // namespace longspan::testing
